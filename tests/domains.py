#!/usr/bin/env python3
"""A machine with two memory domains, played by QEMU, and kvik in it: whole, and kept in either domain.

Shows that kvik sees both domains, that `--memory-domain` keeps every thread and all but the first pages there, and that
answers have the same bytes in domain 0, in domain 1, on all four processors, and outside of the emulator.

    tests/domains.py [--kernel vmlinuz]

It takes `qemu-system-x86_64`, a static `busybox` and a Linux kernel with NUMA; without --kernel it gets Debian's, which is
unpacked and not installed. Where one of them is not to be had it says so and skips. Nothing is emulated fast: this shows
what is right, not what is fast. `KVIK_BINARY` names the program, else that of a debug build.
"""
import argparse
import base64
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = pathlib.Path(os.environ.get("KVIK_BINARY", ROOT / "target/debug/kvik"))
WORK = ROOT / "target/domains"
KERNEL_PACKAGE = "linux-image-cloud-amd64"
BOOT_SECONDS = 900
PROMPT = "Once upon a time there was a"
ANSWER = ["run", "--raw", "--temperature", "0", "--max-tokens", "48", "--cache-ram", "16MiB", "--cache-disk", "off"]
# The program's own first pages, before it has read its flags, lie where it was started: 1.3 MiB when this was written.
ELSEWHERE_KIB_MAX = 2048
# Of memory that all threads fill, as they do weights, either domain has half; here threads wait for the emulator.
SHARE_MIN = 0.25
MACHINE = [
    "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2G", "-smp", "4,sockets=2,cores=2,threads=1",
    "-object", "memory-backend-ram,id=m0,size=1G", "-object", "memory-backend-ram,id=m1,size=1G",
    "-numa", "node,nodeid=0,cpus=0-1,memdev=m0", "-numa", "node,nodeid=1,cpus=2-3,memdev=m1",
    "-numa", "dist,src=0,dst=1,val=21",
    "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
]
INIT = r"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /bin
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp KVIK_CACHE_DISK=off KVIK_STATE_DIR=/tmp/state
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
ip link set lo up
part() { echo "=== $1"; }
encoded() { base64 | tr -d '\n'; echo; }

part topology; for node in /sys/devices/system/node/node*; do echo "${node##*/node} $(cat $node/cpulist)"; done
part doctor; kvik doctor --cache-ram 16MiB 2>&1 | grep -A1 "memory domains"
part doctor-1; kvik doctor --cache-ram 16MiB --memory-domain 1 2>&1 | grep -E "memory domains|processor  |memory   "
part spread; kvik doctor --cache-ram 16MiB --threads 4 >/dev/null 2>&1 & pid=$!
while kill -0 $pid 2>/dev/null; do grep anon= /proc/$pid/numa_maps 2>/dev/null; sleep 1; done
part missing; kvik run --memory-domain 7 x 2>&1
for where in 0 1 all; do
    flags="--memory-domain $where"; [ $where = all ] && flags="--threads 4"
    part "answer-$where"; kvik @ANSWER@ $flags "@PROMPT@" 2>/tmp/log | encoded; cat /tmp/log
    kvik serve --port 8080 --cache-ram 64MiB $flags >/tmp/log 2>&1 & pid=$!
    tries=0; until wget -q -O /dev/null http://127.0.0.1:8080/ready || [ $tries = 300 ]; do sleep 1; tries=$((tries + 1)); done
    wget -q -O - --header 'content-type: application/json' --post-data '{"prompt": "@PROMPT@", "n_predict": 16}' \
        http://127.0.0.1:8080/completion >/dev/null
    part "server-$where"; grep "requests at a time" /tmp/log || cat /tmp/log
    part "threads-$where"; cat /proc/$pid/task/*/status | grep Cpus_allowed_list
    part "memory-$where"; grep anon= /proc/$pid/numa_maps | grep -v file=
    kill $pid; wait $pid
done
part end
poweroff -f
"""


class Missing(Exception):
    """What this machine has not."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", type=pathlib.Path, help="a bzImage; default: the one of Debian's package")
    args = parser.parse_args()
    started = time.monotonic()
    try:
        tools = {name: tool(name) for name in ("qemu-system-x86_64", "busybox")}
        kernel = args.kernel or debian_kernel()
        if not BINARY.exists():
            raise Missing(f"{BINARY}: cargo build -p kvik")
        said = boot(tools["qemu-system-x86_64"], kernel, initramfs(pathlib.Path(tools["busybox"])))
    except Missing as missing:
        print(f"skipped, for want of {missing}")
        return
    faults = judge(parts_of(said))
    print(f"{time.monotonic() - started:.0f} s; " + ("\n".join(["WRONG:", *faults]) if faults else "all of it is right"))
    sys.exit(1 if faults else 0)


def tool(name):
    found = shutil.which(name)
    if not found:
        raise Missing(f"{name}: apt install qemu-system-x86 busybox-static")
    return found


def debian_kernel():
    """The kernel of the newest package, unpacked under target/."""
    found = sorted(WORK.glob("boot/vmlinuz-*"))
    if found:
        return found[-1]
    WORK.mkdir(parents=True, exist_ok=True)
    run = lambda *command: subprocess.run(command, cwd=WORK, check=True, capture_output=True, text=True).stdout
    try:
        package, = re.findall(r"Depends: (linux-image-\S+)", run("apt-cache", "depends", KERNEL_PACKAGE))[:1]
        run("apt-get", "download", package)
        run("dpkg-deb", "-x", str(next(WORK.glob("linux-image-*.deb"))), str(WORK))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise Missing(f"a kernel, which --kernel names ({KERNEL_PACKAGE} of apt: {error})") from error
    return next(WORK.glob("boot/vmlinuz-*"))


def initramfs(busybox):
    """A file system in memory: the two programs, the libraries of kvik, and what is done at the start."""
    script = INIT.replace("@ANSWER@", " ".join(ANSWER)).replace("@PROMPT@", PROMPT)
    files = {"init": script.encode(), "bin/busybox": busybox.read_bytes(), "bin/kvik": stripped(BINARY)}
    linked = subprocess.run(["ldd", str(BINARY)], capture_output=True, text=True).stdout
    for library in re.findall(r"(/\S+) \(0x", linked):
        files[library.lstrip("/")] = pathlib.Path(library).resolve().read_bytes()
    folders = {str(parent) for name in files for parent in pathlib.PurePath(name).parents if str(parent) != "."} | {"dev"}
    entries = [entry(name, 0o040755) for name in sorted(folders)]
    entries += [entry("dev/console", 0o020600, device=(5, 1))]
    entries += [entry(name, 0o100755, data) for name, data in files.items()]
    path = WORK / "initramfs.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(b"".join(entries) + entry("TRAILER!!!", 0), compresslevel=1))
    return path


def stripped(binary):
    """Without what only a debugger reads: the emulator unpacks all of it."""
    if not shutil.which("strip"):
        return binary.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["strip", "-o", f"{folder}/kvik", str(binary)], check=True)
        return pathlib.Path(folder, "kvik").read_bytes()


def entry(name, mode, data=b"", device=(0, 0)):
    """A file of a cpio archive, in the format "newc"."""
    entry.inode = getattr(entry, "inode", 0) + 1
    fields = [entry.inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    padded = lambda part: part + bytes(-len(part) % 4)
    return padded(head) + padded(data)


def boot(qemu, kernel, initrd):
    command = [qemu, *MACHINE, "-kernel", str(kernel), "-initrd", str(initrd)]
    command += ["-append", "console=ttyS0 quiet panic=-1 rdinit=/init"]
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOOT_SECONDS)
    except subprocess.TimeoutExpired as late:
        sys.exit(f"the machine took more than {BOOT_SECONDS} s; it said\n{(late.stdout or b'').decode()[-3000:]}")
    return ran.stdout.replace("\r", "") + ran.stderr


def parts_of(said):
    parts = dict(re.findall(r"^=== (\S+)\n(.*?)(?=^=== |\Z)", said, re.M | re.S))
    if "end" not in parts:
        sys.exit(f"the machine did not come to its end; it said\n{said[-3000:]}")
    return parts


def judge(parts):
    """What is not as it should be; what was found is printed."""
    show = lambda name: print(f"--- {name}\n{parts[name].rstrip()}")
    for name in ("topology", "doctor", "doctor-1", "missing"):
        show(name)
    list_of_domains = "0 (processors 0-1), 1 (processors 2-3)"
    faults = [
        (parts["topology"].split() == ["0", "0-1", "1", "2-3"], "the emulated machine has not two domains"),
        (f"2: {list_of_domains}" in parts["doctor"], "kvik doctor does not tell both"),
        ("stays in 1 (processors 2-3), one of 2" in parts["doctor-1"], "kvik doctor does not stay in one"),
        ("2 processors 2 are fast cores, and 2 threads" in parts["doctor-1"], "threads by default are not those of the domain"),
        (list_of_domains in parts["missing"], "an unknown domain does not name those there are"),
    ]
    faults += judge_spread(parts["spread"])
    for where, cpus, threads in [("0", "0-1", 2), ("1", "2-3", 2), ("all", "0-3", 4)]:
        faults += judge_server(parts, where, cpus, threads)
    answers = {where: parts[f"answer-{where}"].split("\n", 1)[0] for where in ("0", "1", "all")}
    answers["outside"] = answer_here()
    text = base64.b64decode(answers["outside"]).decode()
    print(f"--- answers in {', '.join(answers)}: {len(set(answers.values()))} different\n{text.rstrip()}")
    faults += [(len(set(answers.values())) == 1 and len(text) > 40, f"answers differ: {answers}")]
    return [fault for is_right, fault in faults if not is_right]


def judge_spread(maps):
    """Of what `kvik doctor` reads to measure memory, its largest mapping, which all threads have filled."""
    mappings = [[pages_of(line, node) for node in (0, 1)] for line in maps.splitlines() if "kernelpagesize" in line]
    largest = max(mappings, key=sum, default=[0, 0])
    print(f"--- memory that 4 threads fill, KiB in domain 0 and 1: {largest}")
    is_large = sum(largest) > 100 << 10
    return [(is_large and min(largest) >= SHARE_MIN * sum(largest), f"{largest} KiB are not in both domains")]


def judge_server(parts, where, cpus, threads):
    allowed = re.findall(r"Cpus_allowed_list:\s*(\S+)", parts[f"threads-{where}"])
    pages = [pages_of(parts[f"memory-{where}"], node) for node in (0, 1)]
    policies = sorted(set(re.findall(r"^\S+ (\S+)", parts[f"memory-{where}"], re.M)))
    print(f"--- server {where}: {parts[f'server-{where}'].strip()}")
    print(f"{len(allowed)} threads on processors {sorted(set(allowed))}, policy {policies}, KiB in domain 0 and 1: {pages}")
    faults = [
        (set(allowed) == {cpus} and len(allowed) > threads, f"{where}: threads run on {allowed}"),
        (f" {threads} threads" in parts[f"server-{where}"], f"{where}: not {threads} threads"),
    ]
    if where == "all":
        return faults + [(min(pages) > 0, f"{where}: all memory is in one domain")]
    elsewhere = pages[1 - int(where)]
    return faults + [
        (policies == [f"bind:{where}"], f"{where}: memory has policy {policies}"),
        (elsewhere <= ELSEWHERE_KIB_MAX, f"{where}: {elsewhere} KiB of the memory are elsewhere"),
    ]


def pages_of(maps, node):
    """KiB of a domain in lines of numa_maps."""
    lines = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in maps.splitlines()]
    return sum(int(line.get(f"N{node}", 0)) * int(line["kernelpagesize_kB"]) for line in lines)


def answer_here():
    env = {key: value for key, value in os.environ.items() if not key.startswith("KVIK_")}
    ran = subprocess.run([str(BINARY), *ANSWER, "--threads", "2", PROMPT], capture_output=True, check=True, env=env)
    return base64.b64encode(ran.stdout).decode()


if __name__ == "__main__":
    main()
