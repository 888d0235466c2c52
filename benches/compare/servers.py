"""The servers of `compare`: how each is started, kept from the rest of the machine, and ended."""

import ctypes
import errno
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import time

START_SECONDS_MAX = 30
STDOUT_LINES_MAX = 1000

GANESHA_NFS_PORT = 2049
GANESHA_MOUNT_PORT = 20048
GANESHA_ROOT = "/run/root"
GANESHA_RECOVERY = "/var/lib/nfs/ganesha"
SYSTEM_DIRECTORIES = ["/usr", "/etc", "/lib", "/lib64", "/bin", "/sbin"]
GANESHA_CONFIG = """
NFS_CORE_PARAM {{
    Protocols = 3; NFS_Port = {nfs}; MNT_Port = {mount};
    Enable_NLM = false; Enable_RQUOTA = false;
}}
EXPORT {{
    Export_Id = 1; Path = {path}; Pseudo = /state; Protocols = 3; Access_Type = RW;
    Squash = No_Root_Squash; SecType = sys; Transports = TCP; FSAL {{ Name = VFS; }}
}}
"""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 4096, 8192, 16384, 1 << 18
CLONE_NEWNS = 0x20000
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """A server that cannot take part, and why."""


def mount(source, target, kind, flags, data=None):
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if libc.mount(*arguments, flags, None if data is None else os.fsencode(data)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {target}: {os.strerror(code)}")


def loopback_up():
    """`ip link set lo up`, without needing ip."""
    SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(handle, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def dies_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def mount_points():
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        points = [line.split()[4] for line in lines]
    # Spaces and the like are written as three octal digits.
    return [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point) for point in points]


def bind(source, root, flags):
    """Shows `source` at the same path under `root`."""
    target = root + source
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb"):
            pass
    mount(source, target, None, MS_BIND)
    if flags:
        mount(None, target, None, MS_REMOUNT | MS_BIND | flags)


def kept(writable):
    """Runs in a child before Ganesha, which as root could otherwise reach the whole machine: a
    mount namespace with nothing but its state and, read-only, the system's programs."""

    def prepare():
        # The exception itself does not reach the parent, its text does.
        try:
            enclose()
        except Exception as why:
            os.write(2, f"{why}\n".encode())
            raise

    def enclose():
        dies_with_parent()
        if libc.unshare(CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        mount(None, "/", None, MS_REC | MS_PRIVATE)
        mount("tmpfs", GANESHA_ROOT, "tmpfs", MS_NOSUID | MS_NODEV)
        # The state comes first: Ganesha takes the first mount of a file system for its only one.
        for path in writable:
            bind(path, GANESHA_ROOT, 0)
        for name in SYSTEM_DIRECTORIES:
            if os.path.islink(name):
                os.symlink(os.readlink(name), GANESHA_ROOT + name)
            elif os.path.isdir(name):
                bind(name, GANESHA_ROOT, MS_RDONLY | MS_NOSUID | MS_NODEV)
        bind("/proc", GANESHA_ROOT, MS_RDONLY)
        for name in ("/dev/null", "/dev/urandom", "/dev/random"):
            bind(name, GANESHA_ROOT, MS_RDONLY)
        os.makedirs(GANESHA_ROOT + GANESHA_RECOVERY)
        mount("tmpfs", GANESHA_ROOT + GANESHA_RECOVERY, "tmpfs", MS_NOSUID | MS_NODEV)
        mount(None, GANESHA_ROOT, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
        os.chdir(GANESHA_ROOT)
        mount(".", "/", None, MS_MOVE)
        os.chroot(".")
        for point in mount_points():
            if point not in (*writable, GANESHA_RECOVERY):
                if not os.statvfs(point).f_flag & os.ST_RDONLY:
                    raise OSError(errno.EPERM, f"{point} stays writable")

    return prepare


def wait_for_port(port, process, name, log):
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise Unavailable(f"{name} does not answer on port {port}: {tail(log)}")


def tail(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            text = " | ".join(line.strip() for line in lines.readlines()[-3:])
    except OSError:
        text = ""
    return text or "it says nothing"


class Server:
    """A process under test, and the options with which `load` finds it."""

    def __init__(self, name, processes, load_options):
        self.name = name
        self.processes = processes
        self.load_options = load_options

    def alive(self):
        return all(process.poll() is None for process in self.processes)

    def stop(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()


def start_echo(options, state, style):
    log = os.path.join(state, f"echo-{style}.log")
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [os.path.join(options.bin, "echo"), "--replies", style],
            stdout=subprocess.PIPE, stderr=errors, preexec_fn=dies_with_parent,
        )
    port = json.loads(process.stdout.readline() or b"{}").get("port")
    if port is None:
        raise Unavailable(f"echo does not start: {tail(log)}")
    sizes = ["--sizes", options.sizes] if options.sizes else []
    name = {"batched": "echo", "single": "echo-single"}[style]
    return Server(name, [process], ["--echo", "--port", str(port), *sizes])


def spawn_kept(command, log, writable, companion):
    """Starts a server that can write nowhere else, or ends its companion."""
    try:
        with open(log, "ab") as output:
            return subprocess.Popen(
                command, stdout=output, stderr=output, preexec_fn=kept(writable)
            )
    except (OSError, subprocess.SubprocessError) as why:
        companion.kill()
        companion.wait()
        raise Unavailable(f"cannot start {command[0]}: {tail(log)}") from why


def start_ganesha(state):
    ganesha, rpcbind = shutil.which("ganesha.nfsd"), shutil.which("rpcbind")
    if ganesha is None or rpcbind is None:
        missing = "ganesha.nfsd" if ganesha is None else "rpcbind"
        raise Unavailable(f"{missing} is not installed: apt-get install nfs-ganesha nfs-ganesha-vfs")
    export, private = os.path.join(state, "ganesha"), os.path.join(state, "ganesha-private")
    os.makedirs(export)
    os.makedirs(private)
    for path in ("/run/ganesha", GANESHA_ROOT):
        os.makedirs(path)
    config, log = os.path.join(private, "ganesha.conf"), os.path.join(private, "log")
    with open(config, "w", encoding="utf-8") as out:
        ports = {"nfs": GANESHA_NFS_PORT, "mount": GANESHA_MOUNT_PORT}
        out.write(GANESHA_CONFIG.format(path=export, **ports))
    output = os.path.join(private, "output")
    with open(output, "wb") as errors:
        binder = subprocess.Popen(
            [rpcbind, "-f"], stdout=errors, stderr=errors, preexec_fn=dies_with_parent
        )
    deadline = time.monotonic() + START_SECONDS_MAX
    while not os.path.exists("/run/rpcbind.sock") and time.monotonic() < deadline:
        time.sleep(0.05)
    process = spawn_kept(
        [ganesha, "-F", "-L", log, "-f", config, "-p", "/run/ganesha.pid", "-N", "NIV_EVENT"],
        output, [export, private, "/run"], binder,
    )
    server = Server(
        "ganesha", [binder, process],
        ["--port", str(GANESHA_NFS_PORT), "--mountport", str(GANESHA_MOUNT_PORT),
         "--export", export],
    )
    try:
        wait_for_port(GANESHA_NFS_PORT, process, "ganesha", log)
        wait_for_port(GANESHA_MOUNT_PORT, process, "ganesha", log)
    except Unavailable:
        server.stop()
        raise
    return server


def start_holdfast(options, state):
    data = os.path.join(state, "holdfast")
    os.makedirs(data)
    text = options.holdfast.format(data=data, port=options.holdfast_port, bin=options.bin)
    command = shlex.split(text)
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} is not built: cargo build --release -p control")
    log = os.path.join(state, "holdfast.log")
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, cwd=data, preexec_fn=dies_with_parent
        )
    server = Server("holdfast", [process], [])
    try:
        path = mount_path(process)
        if path is None:
            raise Unavailable(f"`{text}` prints no line with mount_path: {tail(log)}")
        wait_for_port(options.holdfast_port, process, "holdfast", log)
    except Unavailable:
        server.stop()
        raise
    server.load_options = ["--port", str(options.holdfast_port), "--export", path]
    return server


def mount_path(process):
    """The first JSON object on standard output that has the field; it may span lines."""
    text = ""
    for _ in range(STDOUT_LINES_MAX):
        line = process.stdout.readline()
        if not line:
            return None
        text += line.decode(errors="replace")
        start = text.find("{")
        try:
            value = json.loads(text[start:]) if start >= 0 else None
        except ValueError:
            # The object goes on, or this was a line of something else.
            value = None
        if isinstance(value, dict):
            if "mount_path" in value:
                return value["mount_path"]
            text = ""
    return None
