//! The running virtual machine.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::initramfs::{self, Job};
use super::kernel::Kernel;

/// The time limit for booting the machine and starting the command. An idle host needs 3 seconds.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// The time limit for powering off the machine.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// The number of the kernel's last lines that a failure message contains.
const LAST_LINES: usize = 30;

/// The size of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineSize {
    /// Number of processors.
    pub(crate) cpus: u32,
    /// Memory in MiB.
    pub(crate) memory_mib: u32,
}

impl Default for MachineSize {
    fn default() -> Self {
        MachineSize {
            cpus: 2,
            memory_mib: 4096,
        }
    }
}

/// QEMU's process, killed when dropped.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file with the kernel's console output.
const CONSOLE: &str = "console";
/// The file with QEMU's error messages.
const QEMU_STDERR_FILE: &str = "qemu";

/// The serial ports of the machine, in the order of their connections.
const PORTS: [&str; 3] = ["control", "stdout", "stderr"];

/// A message from the machine on its control port.
#[derive(Debug, PartialEq, Eq)]
enum ControlMessage {
    Ready,
    Exit(u8),
    Failed(String),
}

impl MachineSize {
    /// Boots `kernel`, runs `job`, copies its output, and returns its exit status. If a signal ended
    /// the job, the status is 128 plus the signal number, as in a shell.
    ///
    /// # Errors
    /// Returns an error if the machine does not start, stops early, or `limit` passes; the message
    /// contains the kernel's last lines.
    pub(crate) fn run(
        &self,
        kernel: &Kernel,
        job: &Job,
        limit: Option<Duration>,
        stdout: impl Write + Send + 'static,
        stderr: impl Write + Send + 'static,
    ) -> Result<u8> {
        let scratch = tempfile::Builder::new()
            .prefix("verbatim-rxe-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        let scratch = scratch.path();
        let initramfs = scratch.join("initramfs");
        let parts = scratch.join("parts");
        std::fs::create_dir(&parts)?;
        initramfs::build(kernel, job, &parts, &initramfs)?;

        let listeners = PORTS.map(|port| UnixListener::bind(scratch.join(port)));
        eprintln!("booting Linux {} with Soft-RoCE under QEMU", kernel.release);
        let mut qemu = Qemu(self.start(kernel, &initramfs, scratch)?);
        let mut streams = Vec::new();
        for listener in listeners {
            let stream = accept(&listener?, &mut qemu.0).map_err(|err| {
                anyhow!("{err:#}{}", kill_and_get_last_lines(scratch, &mut qemu.0))
            })?;
            streams.push(stream);
        }
        let [control, out, err]: [UnixStream; 3] = streams
            .try_into()
            .map_err(|_| anyhow!("QEMU connected too few ports"))?;
        let copies = [
            thread::spawn(move || copy(out, stdout)),
            thread::spawn(move || copy(err, stderr)),
        ];
        let said = listen(control);
        let status = wait(&said, limit)
            .map_err(|err| anyhow!("{err:#}{}", kill_and_get_last_lines(scratch, &mut qemu.0)))?;
        wait_for_power_off(&mut qemu.0);
        drop(qemu);
        for copy in copies {
            copy.join()
                .map_err(|_| anyhow!("copying the output failed"))?
                .context("cannot pass the command's output on")?;
        }
        Ok(status)
    }

    fn start(&self, kernel: &Kernel, initramfs: &Path, scratch: &Path) -> Result<Child> {
        // QEMU must end with this process, even if this process is killed.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults"])
            .args(["-no-reboot", "-display", "none", "-monitor", "none"])
            // Do not use /dev/kvm: within a virtual machine it may exist and hang.
            .args(["-accel", "tcg,thread=multi"])
            // TCG executes `rep movsb` byte by byte. Without ERMS, the memcpy of the kernel and of
            // glibc do not use this instruction. A WRITE of 64 KiB by the software NIC is then 50
            // times faster, and a WRITE by Soft-RoCE is no slower.
            .args(["-cpu", "max,-erms,-fsrm"])
            .args(["-smp", &self.cpus.to_string()])
            .args(["-m", &format!("{}M", self.memory_mib)])
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(initramfs)
            // Panic at an oops of a driver: the command would otherwise wait forever. The clock source
            // is the TSC, which TCG keeps equal on all processors: a read takes 55 ns. Without this
            // option the kernel chooses the HPET, with 830 ns. Without mitigations and cleared pages, 32 cases of
            // perftest take 145 s instead of 153 s.
            .args([
                "-append",
                "console=ttyS0 panic=-1 oops=panic clocksource=tsc tsc=reliable mitigations=off init_on_alloc=0",
            ])
            .arg("-serial")
            .arg(format!("file:{}", scratch.join(CONSOLE).display()))
            .args([
                "-virtfs",
                "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
            ])
            .args(["-device", "virtio-serial-pci"])
            .args(["-device", "virtio-rng-pci"]);
        for port in PORTS {
            let path = scratch.join(port);
            command
                .arg("-chardev")
                .arg(format!("socket,id={port},path={}", path.display()))
                .arg("-device")
                .arg(format!(
                    "virtserialport,chardev={port},name=verbatim.{port}"
                ));
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(scratch.join(QEMU_STDERR_FILE))?)
            .spawn()
            .context("cannot start setpriv (package util-linux)")
    }
}

/// Returns QEMU's connection to `listener`; QEMU makes all connections before the machine starts.
fn accept(listener: &UnixListener, qemu: &mut Child) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let begin = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
            Err(err) => return Err(err.into()),
        }
        if let Some(status) = qemu.try_wait()? {
            bail!("QEMU ended at once ({status})");
        }
        if begin.elapsed() > BOOT_LIMIT {
            bail!("QEMU started and made no connection");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Copies `from` to `to` until the end of `from`, and writes each piece at once.
fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                to.write_all(&buffer[..length])?;
                to.flush()?;
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            // QEMU has ended.
            Err(err) if err.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(err) => return Err(err),
        }
    }
}

/// Returns the messages of the control port; the channel closes when the machine ends.
fn listen(control: UnixStream) -> Receiver<ControlMessage> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(control).lines().map_while(Result::ok) {
            if let Some(said) = understand(&line)
                && sender.send(said).is_err()
            {
                break;
            }
        }
    });
    receiver
}

fn understand(line: &str) -> Option<ControlMessage> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "ready" => Some(ControlMessage::Ready),
        "exit" => rest.parse().ok().map(ControlMessage::Exit),
        "failed" => Some(ControlMessage::Failed(rest.to_owned())),
        _ => None,
    }
}

/// Waits for the exit status of the command in the machine.
fn wait(said: &Receiver<ControlMessage>, limit: Option<Duration>) -> Result<u8> {
    let begin = Instant::now();
    let mut deadline = Some(begin + BOOT_LIMIT);
    let mut ready = false;
    loop {
        let next = match deadline {
            Some(deadline) => said.recv_timeout(deadline.saturating_duration_since(Instant::now())),
            None => said.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(ControlMessage::Ready) => {
                ready = true;
                deadline = limit.map(|limit| Instant::now() + limit);
            }
            Ok(ControlMessage::Exit(status)) => return Ok(status),
            Ok(ControlMessage::Failed(words)) => {
                bail!("the virtual machine cannot be set up: {words}")
            }
            Err(RecvTimeoutError::Disconnected) if ready => {
                bail!("the virtual machine stopped before the command ended")
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the virtual machine did not boot"),
            Err(RecvTimeoutError::Timeout) if ready => bail!(
                "the command did not end within {} s",
                limit.unwrap_or_default().as_secs()
            ),
            Err(RecvTimeoutError::Timeout) => bail!(
                "the virtual machine did not boot within {} s",
                BOOT_LIMIT.as_secs()
            ),
        }
    }
}

/// Returns the last lines of the kernel's console and of QEMU's messages, for an error message.
fn kill_and_get_last_lines(scratch: &Path, qemu: &mut Child) -> String {
    let _ = qemu.kill();
    let _ = qemu.wait();
    let lines = |file| {
        let text = std::fs::read(scratch.join(file)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n  ")
    };
    let mut words = match lines(CONSOLE) {
        none if none.is_empty() => "; its kernel printed nothing".to_owned(),
        some => format!("; its kernel's last lines:\n  {some}"),
    };
    let complaints = lines(QEMU_STDERR_FILE);
    if !complaints.is_empty() {
        words += &format!("\nQEMU said:\n  {complaints}");
    }
    words
}

/// Waits until the machine has powered off by itself, so that all output has arrived.
fn wait_for_power_off(qemu: &mut Child) {
    let begin = Instant::now();
    while matches!(qemu.try_wait(), Ok(None)) && begin.elapsed() < STOP_LIMIT {
        thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_port_is_understood() {
        assert_eq!(understand("ready"), Some(ControlMessage::Ready));
        assert_eq!(understand("exit 137"), Some(ControlMessage::Exit(137)));
        assert_eq!(
            understand("failed mount: no such device"),
            Some(ControlMessage::Failed("mount: no such device".to_owned()))
        );
        for noise in ["", "exit", "exit 256", "exit -1", "hello"] {
            assert_eq!(understand(noise), None, "{noise:?}");
        }
    }

    #[test]
    fn the_machine_may_stop_or_say_why() {
        let (sender, receiver) = mpsc::channel();
        sender.send(ControlMessage::Ready).expect("it listens");
        drop(sender);
        let err = wait(&receiver, None).expect_err("it stopped");
        assert!(
            err.to_string().contains("before the command ended"),
            "{err}"
        );

        let (sender, receiver) = mpsc::channel();
        sender
            .send(ControlMessage::Failed("rdma: gone".into()))
            .expect("it listens");
        let err = wait(&receiver, None).expect_err("it failed");
        assert!(err.to_string().ends_with("rdma: gone"), "{err}");

        let (sender, receiver) = mpsc::channel();
        sender.send(ControlMessage::Ready).expect("it listens");
        let err = wait(&receiver, Some(Duration::ZERO)).expect_err("it takes too long");
        assert!(err.to_string().contains("did not end within 0 s"), "{err}");
        drop(sender);
    }
}
