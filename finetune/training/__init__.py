"""How weights change: schedules, optimizer groups, data modules, and the two Lightning modules.

Every rule here is a pure function first (step to factor, epoch to order of batches, group to
learning rate); a thin Lightning class then applies it.
"""
