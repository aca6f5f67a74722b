"""Several processes on one port: a supervisor, and workers that are gates like any other.

Theory of operation. One process decides with everything before it and uses one core. With `workers: N`
the supervisor takes the addresses, keeps the table by which the workers share each server's budget (the
leases of several gates, see `core.lease`, with a store in memory) and starts N processes. Each listens on
the one data port (SO_REUSEPORT: the kernel gives each new connection to one of them) and has its control
plane on a Unix socket in a folder that only this user can enter; the supervisor's own control plane
answers for all. No request passes through the supervisor.

Who dies is started anew. Who lives sees that the supervisor is gone by the end of its standard input, and
goes too: without the table nothing more could be granted, and the port must be free for the next start.

    supervisor   the life of it all: addresses, folder, table, signals, the end
    crew         processes: started, awaited, started anew, ended; `watchdog` ends one that hangs
    worker       one of these processes
    order        what a worker is told when it is started
    front        the control plane for all; `asking` asks the workers, `sums` and `exposition` add up
"""
