"""Signal state a test must not inherit from its caller.

`nohup ./test` begins with SIGHUP ignored, `./test &` in a script with SIGINT ignored, and a caller may have signals blocked. All
of that passes through exec to every program a test starts, where a signal that was sent to stop it would do nothing.
"""
import signal

UNCATCHABLE = {signal.SIGKILL, signal.SIGSTOP}


def forget_signals():
    """forget_signals makes child processes start with default signals and an empty mask. We still ignore what we were told to:
    exec resets a handler that does nothing, but not SIG_IGN."""
    for number in signal.valid_signals() - UNCATCHABLE:
        if signal.getsignal(number) == signal.SIG_IGN: signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
