/* Faults at system calls, for tests: loaded before the C library (LD_PRELOAD), it counts the calls
 * that change files below a folder, and at one of them sends a signal to the process or lets the
 * call fail. Python's, Rust's and torch's own writing go through these functions alike.
 *
 * armed(root, point, signal, torn, error, trace): count calls below `root` from 1; at call `point`
 * send `signal` (then make the call; with `torn`, if it writes, write half of it first), or fail
 * with `error`: once, or with ENOSPC from there on, as a full disk does, in every call that takes
 * space. `trace`: a descriptor for a line a call, or -1.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length;
static long point;
static int number, torn, failure, trace = -1;
static atomic_long calls;

void armed(const char *folder, long at, int signal_number, int half, int error, int trace_to) {
    snprintf(root, sizeof root, "%s", folder);
    point = at, number = signal_number, torn = half, failure = error, trace = trace_to;
    atomic_store(&calls, 0);
    root_length = strlen(root); /* last: from here on calls count */
}

static int below(const char *path) {
    return root_length && !strncmp(path, root, root_length) &&
           (path[root_length] == '/' || !path[root_length]);
}

static int of_descriptor(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static int resolved(int folder, const char *name, char *path) {
    if (name[0] == '/') return snprintf(path, PATH_MAX, "%s", name), 1;
    if (folder == AT_FDCWD) {
        if (!getcwd(path, PATH_MAX)) return 0;
    } else if (!of_descriptor(folder, path)) {
        return 0;
    }
    size_t length = strlen(path);
    return snprintf(path + length, PATH_MAX - length, "/%s", name), 1;
}

/* Whether the call is to fail: -1 with errno set, or 0; 1 if half of it is to be written. */
static int reached(const char *call, const char *path, int takes_space) {
    if (!below(path)) return 0;
    long here = atomic_fetch_add(&calls, 1) + 1;
    if (trace >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%s %d %s\n", call, takes_space, path);
        syscall(SYS_write, trace, line, length);
    }
    if (here == point && number && torn && call[0] == 'w') return 1;
    if (here == point && number) kill(getpid(), number);
    int full = failure == ENOSPC && here > point && takes_space && point;
    if (failure && (here == point || full)) return errno = failure, -1;
    return 0;
}

static int at_path(const char *call, int folder, const char *name, int takes_space) {
    char path[PATH_MAX];
    if (!root_length || !resolved(folder, name, path)) return 0;
    return reached(call, path, takes_space);
}

static int at_descriptor(const char *call, int descriptor, int takes_space) {
    char path[PATH_MAX];
    if (!root_length || !of_descriptor(descriptor, path)) return 0;
    return reached(call, path, takes_space);
}

static int at_opening(int folder, const char *name, int flags) {
    if (!(flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))) return 0;
    return at_path("open", folder, name, !!(flags & O_CREAT));
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

static mode_t mode_of(int flags, va_list more) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
}
#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); va_list more; va_start(more, flags); \
        mode_t mode = mode_of(flags, more); va_end(more); \
        return at_opening(AT_FDCWD, path, flags) ? -1 : real(path, flags, mode); \
    }
#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(name); va_list more; va_start(more, flags); \
        mode_t mode = mode_of(flags, more); va_end(more); \
        return at_opening(folder, path, flags) ? -1 : real(folder, path, flags, mode); \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

ssize_t write(int file, const void *content, size_t size) {
    REAL(write);
    int what = at_descriptor("write", file, 1);
    if (what > 0) real(file, content, size / 2), kill(getpid(), number);
    return what < 0 ? -1 : real(file, content, size);
}
ssize_t pwrite(int file, const void *content, size_t size, off_t offset) {
    REAL(pwrite);
    int what = at_descriptor("write", file, 1);
    if (what > 0) real(file, content, size / 2, offset), kill(getpid(), number);
    return what < 0 ? -1 : real(file, content, size, offset);
}
ssize_t pwrite64(int file, const void *content, size_t size, off64_t offset) {
    REAL(pwrite64);
    int what = at_descriptor("write", file, 1);
    if (what > 0) real(file, content, size / 2, offset), kill(getpid(), number);
    return what < 0 ? -1 : real(file, content, size, offset);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    int what = at_descriptor("write", file, 1);
    if (what > 0) kill(getpid(), number);
    return what < 0 ? -1 : real(file, parts, count);
}
int ftruncate(int file, off_t size) {
    REAL(ftruncate);
    return at_descriptor("truncate", file, 1) ? -1 : real(file, size);
}
int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64);
    return at_descriptor("truncate", file, 1) ? -1 : real(file, size);
}
int fsync(int file) {
    REAL(fsync);
    if (at_descriptor("fsync", file, 0)) return -1;
    return root_length ? 0 : real(file); /* a kill loses nothing that was written */
}
int fdatasync(int file) {
    REAL(fdatasync);
    if (at_descriptor("fsync", file, 0)) return -1;
    return root_length ? 0 : real(file);
}
int rename(const char *old, const char *new) {
    REAL(rename);
    return at_path("rename", AT_FDCWD, new, 1) ? -1 : real(old, new);
}
int renameat(int here, const char *old, int there, const char *new) {
    REAL(renameat);
    return at_path("rename", there, new, 1) ? -1 : real(here, old, there, new);
}
int unlink(const char *path) {
    REAL(unlink);
    return at_path("unlink", AT_FDCWD, path, 0) ? -1 : real(path);
}
int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    return at_path("unlink", folder, path, 0) ? -1 : real(folder, path, flags);
}
int rmdir(const char *path) {
    REAL(rmdir);
    return at_path("rmdir", AT_FDCWD, path, 0) ? -1 : real(path);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return at_path("mkdir", AT_FDCWD, path, 1) ? -1 : real(path, mode);
}
int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(mkdirat);
    return at_path("mkdir", folder, path, 1) ? -1 : real(folder, path, mode);
}
