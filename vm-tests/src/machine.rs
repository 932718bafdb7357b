//! A virtual machine: started, heard, and ended.
//!
//! Three streams come out of it: the kernel's messages (serial console), what the command prints (virtio port "out"), and lines that
//! programs in the guest address to us (port "log"), of which the last is `exit STATUS`. A machine that says nothing for too long
//! counts as hung. It dies with its owner.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::payload::{Guest, Payload};

/// How many of the kernel's messages are shown when a run fails.
const KERNEL_LINES: usize = 80;
/// How long a probe may take until the kernel speaks.
const PROBE: Duration = Duration::from_secs(10);
/// How long a guest may be silent until its own programs run: then it hangs in what its kernel or QEMU does at its start.
const BOOT: Duration = Duration::from_secs(90);
/// So often it is started anew then. Nothing of what is tested has begun.
const ANEW: u32 = 1;

/// How the guest's instructions are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// By the processor.
    Kvm,
    /// By QEMU.
    Tcg,
}

impl Accelerator {
    /// KVM if a short boot shows that it works here, else TCG. The answer is kept in the target folder for a day.
    pub fn find(guest: &Guest, target: &Path) -> Result<Self> {
        let kept = target.join("vm").join("accelerator");
        let fresh = fs::metadata(&kept)
            .and_then(|meta| meta.modified())
            .is_ok_and(|time| time.elapsed().is_ok_and(|age| age < Duration::from_secs(24 * 3600)));
        if fresh {
            return Ok(if fs::read_to_string(&kept)?.trim() == "kvm" { Self::Kvm } else { Self::Tcg });
        }
        let found = if Path::new("/dev/kvm").exists() && kvm_boots(guest)? { Self::Kvm } else { Self::Tcg };
        fs::write(&kept, found.name())?;
        Ok(found)
    }

    /// As QEMU calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

fn kvm_boots(guest: &Guest) -> Result<bool> {
    let machine = Machine::start(&Setup::new(guest.clone(), Accelerator::Kvm))?;
    let end = Instant::now() + PROBE;
    loop {
        match machine.next(end.saturating_duration_since(Instant::now())) {
            Ok(Event::Log(line)) if line.starts_with("up ") => return Ok(true),
            Ok(Event::Ended) | Err(_) => return Ok(false),
            Ok(_) => {}
        }
    }
}

/// Where a disk's content is.
#[derive(Debug, Clone)]
pub enum Backing {
    /// A new, empty file that goes with the machine, of that many bytes.
    New(u64),
    /// The socket of an NBD server.
    Nbd(PathBuf),
}

/// What a machine is made of.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Kernel and userland.
    pub guest: Guest,
    /// How it runs.
    pub accelerator: Accelerator,
    /// What is brought along.
    pub payload: Payload,
    /// Disks, `/dev/ah/NAME`.
    pub disks: Vec<(String, Backing)>,
}

impl Setup {
    /// A machine that does nothing.
    pub fn new(guest: Guest, accelerator: Accelerator) -> Self {
        Self { guest, accelerator, payload: Payload::default(), disks: Vec::new() }
    }
}

/// Something that a machine said.
#[derive(Debug)]
pub enum Event {
    /// A message of the kernel.
    Kernel(String),
    /// Output of the command.
    Out(Vec<u8>),
    /// A line for us.
    Log(String),
    /// It is off, and everything that it said has been heard.
    Ended,
}

/// A machine that runs.
#[derive(Debug)]
pub struct Machine {
    child: Child,
    events: Receiver<Event>,
    /// Its temporary files.
    _folder: tempfile::TempDir,
}

impl Machine {
    /// Starts it.
    pub fn start(setup: &Setup) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ah-vm.").tempdir()?;
        let image = folder.path().join("root.cpio");
        setup.payload.pack(&setup.guest, &image)?;
        let mut qemu = qemu(setup, folder.path(), &image)?;
        let (sender, events) = channel();
        let mut listeners = Vec::new();
        if !setup.payload.shell {
            for port in ["kernel", "out", "log"] {
                let path = folder.path().join(port);
                listeners.push((port, UnixListener::bind(&path)?));
                let path = path.display();
                qemu.args(["-chardev".to_owned(), format!("socket,id={port},path={path}")]);
            }
            qemu.args(["-serial", "chardev:kernel", "-device", "virtio-serial-pci"]);
            for port in ["out", "log"] {
                qemu.args(["-device".to_owned(), format!("virtserialport,chardev={port},name={port}")]);
            }
            qemu.stdin(Stdio::null());
        } else {
            qemu.args(["-serial", "mon:stdio"]);
        }
        let errors = folder.path().join("qemu.err");
        qemu.stderr(File::create(&errors)?);
        let mut child = qemu.spawn().context("qemu-system-x86_64 cannot be started (scripts/setup vm installs it)")?;
        for (port, listener) in listeners {
            let Some(stream) = accept(&listener, &mut child)? else {
                let errors = fs::read_to_string(&errors).unwrap_or_default();
                bail!("QEMU ended at once: {}", errors.trim());
            };
            let sender = sender.clone();
            std::thread::spawn(move || match port {
                "kernel" => lines(stream, &sender, Event::Kernel),
                "log" => lines(stream, &sender, Event::Log),
                _ => bytes(stream, &sender),
            });
        }
        Ok(Self { child, events, _folder: folder })
    }

    /// Starts it by `start`, and hears it until its own programs run. One that hangs before that, as happens once in hundreds of starts where
    /// it is emulated, is started anew.
    pub fn up(kernel: &mut KernelLog, mut start: impl FnMut() -> Result<Self>) -> Result<Self> {
        for tries in 0.. {
            let machine = start()?;
            loop {
                match machine.next(BOOT) {
                    Ok(Event::Kernel(line)) => kernel.add(line),
                    Ok(Event::Log(line)) if line.starts_with("up ") => return Ok(machine),
                    Ok(Event::Ended) => return Err(anyhow!("{}", kernel.text()).context("the guest went away")),
                    Ok(_) => {}
                    Err(error) if tries == ANEW => return Err(error.context(kernel.text())),
                    Err(error) => {
                        eprintln!("  {error} before its programs ran, and is started anew");
                        break;
                    }
                }
            }
        }
        unreachable!("it ends with the last try")
    }

    /// What it says next; an error if it says nothing for that long.
    pub fn next(&self, silence: Duration) -> Result<Event> {
        match self.events.recv_timeout(silence) {
            Ok(event) => Ok(event),
            Err(RecvTimeoutError::Timeout) => Err(anyhow!("the guest was silent for {} s", silence.as_secs())),
            Err(RecvTimeoutError::Disconnected) => Ok(Event::Ended),
        }
    }

    /// Takes its power away, now.
    pub fn cut(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it is off, where nothing of it is heard.
    pub fn wait(&mut self) -> Result<()> {
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.cut();
    }
}

fn qemu(setup: &Setup, folder: &Path, image: &Path) -> Result<Command> {
    // It must not outlive us, however we end.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"]);
    command.args(["-display", "none", "-m", "4G", "-smp", "2"]);
    command.args(match setup.accelerator {
        Accelerator::Kvm => ["-accel", "kvm", "-cpu", "host"],
        Accelerator::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"],
    });
    let mut line =
        "console=ttyS0 panic=-1 oops=panic mitigations=off nokaslr cryptomgr.notests selinux=0 apparmor=0 audit=0"
            .to_owned();
    // What is stuck in the kernel ends the run, in less time than silence would: a task that waits and cannot be killed, and what ZFS says by
    // VERIFY and PANIC, which by itself only halts the task that it befalls.
    line.push_str(
        " sysctl.kernel.hung_task_panic=1 sysctl.kernel.hung_task_check_interval_secs=30 spl.spl_panic_halt=1",
    );
    if setup.payload.shell {
        line.push_str(" quiet");
    }
    if setup.accelerator == Accelerator::Tcg {
        // Its timer is late when the machine is busy, which the IO-APIC's check takes for a fault and panics.
        line.push_str(" tsc=reliable no_timer_check");
    }
    command.arg("-kernel").arg(setup.guest.kernel()).arg("-initrd").arg(image).arg("-append").arg(line);
    for (name, backing) in &setup.disks {
        // One that goes with the machine is flushed for nobody.
        let cache = if matches!(backing, Backing::New(_)) { "unsafe" } else { "writeback" };
        let mut drive = format!("if=none,id={name},format=raw,cache={cache},discard=ignore,file=");
        match backing {
            Backing::New(size) => {
                let path = folder.join(format!("{name}.disk"));
                crate::disk::blank(&path, *size)?;
                write!(drive, "{}", path.display())?;
            }
            Backing::Nbd(socket) => write!(drive, "nbd+unix:///?socket={}", socket.display())?,
        }
        command.args(["-drive", &drive, "-device", &format!("virtio-blk-pci,drive={name},serial={name}")]);
    }
    Ok(command)
}

/// QEMU's connection, or nothing if it ends before it makes one.
fn accept(listener: &UnixListener, child: &mut Child) -> Result<Option<std::os::unix::net::UnixStream>> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(Some(stream));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if child.try_wait()?.is_some() {
                    return Ok(None);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn lines(stream: impl Read, sender: &Sender<Event>, event: fn(String) -> Event) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    while stream.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        // A line that was cut off was not said.
        if line.last() == Some(&b'\n') {
            let text = String::from_utf8_lossy(&line);
            if sender.send(event(text.trim_end().to_owned())).is_err() {
                return;
            }
        }
        line.clear();
    }
}

fn bytes(mut stream: impl Read, sender: &Sender<Event>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count) = stream.read(&mut buffer) {
        if count == 0 || sender.send(Event::Out(buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}

/// What is kept of the kernel's messages, for the case that a run fails.
#[derive(Debug, Default)]
pub struct KernelLog(std::collections::VecDeque<String>);

impl KernelLog {
    /// One more.
    pub fn add(&mut self, line: String) {
        if self.0.len() == KERNEL_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    /// Them, to be shown.
    pub fn text(&self) -> String {
        self.0.iter().fold("the kernel's last messages:\n".to_owned(), |text, line| text + "  | " + line + "\n")
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The command's exit status.
    pub status: i32,
    /// How long it took until the guest was up.
    pub boot: Duration,
    /// How long it took in all.
    pub whole: Duration,
}

/// Starts a machine, hands what its command prints to `out`, and waits for its end. An error if it hangs, panics or goes away.
pub fn run(setup: &Setup, silence: Duration, out: &mut dyn FnMut(&[u8])) -> Result<Outcome> {
    let started = Instant::now();
    let (mut kernel, mut status) = (KernelLog::default(), None);
    let machine = Machine::up(&mut kernel, || Machine::start(setup))?;
    let boot = started.elapsed();
    loop {
        match machine.next(silence).map_err(|error| error.context(kernel.text()))? {
            Event::Kernel(line) => kernel.add(line),
            Event::Out(bytes) => out(&bytes),
            Event::Log(line) => {
                if let Some(text) = line.strip_prefix("exit ") {
                    status = text.parse().ok();
                }
            }
            Event::Ended => break,
        }
    }
    let status =
        status.ok_or_else(|| anyhow!("{}", kernel.text()).context("the guest went away before its command ended"))?;
    Ok(Outcome { status, boot, whole: started.elapsed() })
}
