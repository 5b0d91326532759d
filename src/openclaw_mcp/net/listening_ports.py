"""Who listens on a port of this machine, as far as the system tells us."""


def find_port_owner(port: int) -> str | None:
    """The name and number of a process; None when nobody listens there, or nobody may know who."""
    import psutil  # here for start-up: only a start that fails and reports ask

    try:
        for held in psutil.net_connections("tcp"):
            if held.status == psutil.CONN_LISTEN and held.pid and held.laddr and held.laddr.port == port:
                return f"{psutil.Process(held.pid).name()} (process {held.pid})"
    except (psutil.Error, OSError):
        pass
    return None
