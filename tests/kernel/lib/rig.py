"""What the workloads share: they run in the guest, as root, with the file system under test on MNT."""
import contextlib
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
import traceback

MNT = os.environ.get('RIG_MNT', '/mnt/nfs')
JOB = os.environ.get('RIG_JOB', '/mnt/job')
TMP = os.environ.get('TMPDIR', '/mnt/scratch')
LONGEST = 400       # of a value in a message
START = time.monotonic()


class Wrong(Exception):
    """The file system did something it must not do."""


def say(*words):
    print(f'[{time.monotonic() - START:7.2f}]', *words, flush=True)


def check(condition, *words):
    if not condition:
        raise Wrong(' '.join(str(w) for w in words))


def equal(got, want, what):
    check(got == want, f'{what}: got {repr(got)[:LONGEST]}, want {repr(want)[:LONGEST]}')


def refused(number, call, *args, **kw):
    """The call must fail with just this error number, or one of these."""
    numbers = number if isinstance(number, tuple) else (number,)
    names = ' or '.join(errno.errorcode[n] for n in numbers)
    try:
        result = call(*args, **kw)
    except OSError as e:
        check(e.errno in numbers, f'{call.__name__}{args}: {errno.errorcode.get(e.errno)}, want {names}')
        return
    raise Wrong(f'{call.__name__}{args} gave {result!r}, want {names}')


def fresh(name):
    """An empty directory on the mount."""
    path = f'{MNT}/{name}'
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    return path


def remount():
    """Unmount and mount again: what is read next comes from the server.  Nothing may be open on the mount, unless others use it, too:
    then the caches are dropped."""
    os.chdir('/')
    if os.environ.get('RIG_SHARES_MOUNT'):
        os.sync()
        with open('/proc/sys/vm/drop_caches', 'w') as f:
            f.write('3')
        return
    run('rig-remount')


def server(verb):
    return run('rig-server', verb).strip()


def run(*command, data=b'', **kw):
    """Runs a command with `data` as its input; its output, or Wrong with all it said."""
    r = subprocess.run(command, input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kw)
    out = r.stdout.decode(errors='replace')
    check(r.returncode == 0, f'{" ".join(command)} ended with {r.returncode}:\n{out[-4000:]}')
    return out


def write(path, data, flags=os.O_CREAT | os.O_TRUNC, mode=0o644, fsync=False):
    fd = os.open(path, os.O_WRONLY | flags, mode)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left):]
        if fsync:
            os.fsync(fd)
    finally:
        os.close(fd)


def read(path):
    with open(path, 'rb') as f:
        return f.read()


def digest(path):
    with open(path, 'rb') as f:
        return hashlib.file_digest(f, 'sha256').hexdigest() if hasattr(hashlib, 'file_digest') else hashlib.sha256(f.read()).hexdigest()


@contextlib.contextmanager
def timed(what, count=None):
    t = time.monotonic()
    yield
    secs = time.monotonic() - t
    say(f'{what}: {secs:.2f} s' + (f', {count / max(secs, 1e-9):.0f} a second' if count else ''))


def parallel(count, work):
    """work(i) in `count` processes at once; all must end well."""
    pids = []
    for i in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(i)
                code = 0
            except BaseException:       # a child must never return into the parent's code
                print(f'process {i}:\n{traceback.format_exc()}', file=sys.stderr, flush=True)
            finally:
                sys.stdout.flush()
                os._exit(code)
        pids.append(pid)
    bad = [i for i, pid in enumerate(pids) if os.waitpid(pid, 0)[1] != 0]
    check(not bad, f'processes {bad} failed')


def as_user(uid, gid, groups, work):
    """work() in a process with just these credentials."""
    def child(_):
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
        work()
    parallel(1, child)


def argument(n, default):
    return type(default)(sys.argv[n]) if len(sys.argv) > n else default


def main(work):
    """Runs the workload; the exit code says whether all of it held."""
    name = os.path.basename(sys.argv[0])
    try:
        check(os.path.ismount(MNT), f'{MNT} is not mounted')
        work()
    except Exception:
        traceback.print_exc()
        say(f'{name}: FAILED')
        sys.exit(1)
    say(f'{name}: ok')
