"""Files: written whole or not at all, with digests, unpacked, and where caches lie."""
