"""Part of a server's folder as a file system of a few megabytes that only the server can see, and that outlives it. A mixin for
a Server, whose prepare() calls hold()."""
import subprocess

import servers


class HeldDisk:
    MEGABYTES = 24

    def hold(self, path):
        """hold mounts it at path, an empty folder."""
        self.small = path
        script = f'mount -t tmpfs -o size={self.MEGABYTES}m none "$0" && echo mounted && exec sleep 3600'
        argv = [*servers.unprivileged("KILL"), "unshare", "-rm", "sh", "-c", script, str(path)]
        self.holder = subprocess.Popen(argv, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.holder.stdout.readline()

    def inside(self, *argv):
        return ["nsenter", "-t", str(self.holder.pid), "-U", "-m", "--preserve-credentials", *argv]

    def command(self):
        return self.inside("unshare", "-U", "--map-user=1000", "--map-group=1000", "setpriv", "--pdeathsig", self.death, *super().command())

    def fill(self):
        """fill uses up all the room, in large pieces and then in small ones."""
        self.run(*self.inside("sh", "-c", 'for size in 65536 1; do dd if=/dev/zero bs=$size 2>/dev/null >>"$0"; done; true', str(self.small / "ballast")))

    def make_room(self):
        self.run(*self.inside("rm", str(self.small / "ballast")))

    def close(self):
        super().close()
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


def possible():
    argv = [*servers.unprivileged("KILL"), "unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(argv, cwd="/", capture_output=True).returncode == 0
