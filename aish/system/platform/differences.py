"""Differences of the portable forms, in words: for `aish doctor` and the page of the systems."""

from aish.core.frozen import frozen


@frozen
class PlatformDifference:
    """A subject, what it rests on where Linux is, and elsewhere, and what is weaker there.

    `weaker` is empty where both are as strong.
    """

    subject: str
    linux: str
    portable: str
    weaker: str = ""


DIFFERENCES = (
    PlatformDifference(
        "sandboxes",
        "bubblewrap, Landlock, seccomp, namespaces",
        "none: what requires one is refused, and `auto` runs without",
        "commands and servers are not confined",
    ),
    PlatformDifference(
        "paths below a root",
        "`openat2` resolves a path in the kernel",
        "opened folder by folder from the root's descriptor, without following a link",
        "links within a root are not followed",
    ),
    PlatformDifference(
        "files put in place",
        "`renameat2`",
        "`renameatx_np` on a Mac; elsewhere a look first, then a rename",
    ),
    PlatformDifference(
        "ends of processes",
        "a descriptor of the process (`pidfd`)",
        "asked for every 20 ms",
        "the end of a process is seen up to 20 ms later",
    ),
    PlatformDifference(
        "processes that leave their group",
        "fall to a subreaper, and are found by their pipes and their mark in `/proc`",
        "found by the mark in their environment, which `ps` shows",
        "a process that leaves its group and clears its environment may outlive the run, and so may"
        " one that forks all the time on a busy machine",
    ),
    PlatformDifference(
        "keys in the environment",
        "closed to child processes (`PR_SET_DUMPABLE`)",
        "nothing",
        "child processes of the same user can read the environment of aish",
    ),
    PlatformDifference(
        "clients of a socket file",
        "`SO_PEERCRED`, and parents by `/proc`",
        "`LOCAL_PEERCRED` and `LOCAL_PEERPID` on a Mac, and parents by `ps`",
        "a client that left its parents behind is not known as a process of the run",
    ),
    PlatformDifference(
        "clients over TCP of this machine",
        "netlink and `/proc`",
        "`lsof`; without it they are refused",
        "clients of other users are refused",
    ),
    PlatformDifference(
        "locks",
        "`flock`; the holder by `/proc`",
        "`flock`",
        "a message does not name the process that holds a lock",
    ),
    PlatformDifference(
        "syncs",
        "`fdatasync`, `syncfs`",
        "`F_FULLFSYNC` on a Mac, else `fsync`; `sync`",
    ),
    PlatformDifference(
        "limits and figures",
        "`sched_getaffinity`, `F_SETPIPE_SZ`, `/proc/self`",
        "the number of processors; pipes as they are; no figures",
        "memory, threads and children of a run are not reported",
    ),
)
