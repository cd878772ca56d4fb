"""One file a backend; each moves bytes by the rules of `dcp_comm.backend.Backend`."""

if __name__ != "dcp_comm.backends":
    message = f"import dcp_comm.backends, not {__name__}: two names would make two sets of classes"
    raise ImportError(message)
