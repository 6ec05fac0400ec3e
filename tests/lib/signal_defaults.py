"""Signal state a test must not inherit from its caller.

`nohup ./test` begins with SIGHUP ignored, `./test &` in a script with SIGINT ignored, and a caller may have signals blocked.
Every program that a test starts inherits that state, so a signal sent to stop it would have no effect.
"""
import signal

UNCATCHABLE = {signal.SIGKILL, signal.SIGSTOP}


def forget_signals():
    """forget_signals makes child processes start with default signals and an empty mask. This process still ignores the same
    signals: exec resets an empty handler, but not SIG_IGN."""
    for number in signal.valid_signals() - UNCATCHABLE:
        if signal.getsignal(number) == signal.SIG_IGN: signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
