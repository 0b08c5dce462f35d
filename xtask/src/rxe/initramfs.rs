//! Builds the initramfs of the virtual machine: busybox, the kernel modules, an init script and the
//! job.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::kernel::Kernel;

/// The script that process 1 of the virtual machine runs.
const INIT: &str = include_str!("init.sh");
/// The path of busybox in Debian's package.
const BUSYBOX: &str = "/bin/busybox";
/// Environment variables that name folders of the host; the virtual machine does not have these
/// folders.
const EXCLUDED_VARIABLES: &[&str] = &["TMPDIR", "XDG_RUNTIME_DIR"];

/// A command to run in the machine.
#[derive(Debug)]
pub(crate) struct Job {
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// The working folder of the command.
    pub(crate) folder: PathBuf,
    /// The environment of the command.
    pub(crate) env: Vec<(OsString, OsString)>,
}

impl Job {
    /// Makes a job of `command` in this process's folder and environment.
    pub(crate) fn in_this_environment(command: Vec<OsString>) -> Result<Job> {
        Ok(Job {
            command,
            folder: std::env::current_dir().context("the current folder is gone")?,
            env: std::env::vars_os()
                .filter(|(name, _)| !EXCLUDED_VARIABLES.iter().any(|left| name == left))
                .collect(),
        })
    }

    /// Returns a shell script that runs the job.
    fn script(&self) -> Vec<u8> {
        let mut script = b"cd ".to_vec();
        quote(&mut script, self.folder.as_os_str());
        script.extend(b" || exit 126\nexec env -i");
        for (name, value) in &self.env {
            script.push(b' ');
            let mut pair = name.clone();
            pair.push("=");
            pair.push(value);
            quote(&mut script, &pair);
        }
        for word in &self.command {
            script.push(b' ');
            quote(&mut script, word);
        }
        script.push(b'\n');
        script
    }
}

/// Appends `word` to a shell script, quoted for the shell.
fn quote(script: &mut Vec<u8>, word: &OsStr) {
    script.push(b'\'');
    for byte in word.as_bytes() {
        match byte {
            b'\'' => script.extend(b"'\\''"),
            other => script.push(*other),
        }
    }
    script.push(b'\'');
}

/// Writes the initramfs for `job` to `file`; `scratch` is an empty folder in which its content is
/// collected.
pub(super) fn build(kernel: &Kernel, job: &Job, scratch: &Path, file: &Path) -> Result<()> {
    for folder in [
        "bin", "dev", "host", "layer", "modules", "proc", "root", "sys",
    ] {
        std::fs::create_dir_all(scratch.join(folder))?;
    }
    std::fs::copy(BUSYBOX, scratch.join("bin/busybox"))
        .with_context(|| format!("cannot read {BUSYBOX}"))?;
    for (place, module) in kernel.modules.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        std::fs::copy(module, scratch.join(format!("modules/{place:02}-{name}")))
            .with_context(|| format!("cannot read {}", module.display()))?;
    }
    std::fs::write(scratch.join("job"), job.script())?;
    let init = scratch.join("init");
    std::fs::write(&init, INIT)?;
    make_executable(&init)?;
    pack(scratch, file)
}

fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::set_permissions(
        file,
        std::fs::Permissions::from_mode(0o755),
    )?)
}

/// Packs the folder as a newc cpio archive, the only format that the kernel accepts.
fn pack(folder: &Path, file: &Path) -> Result<()> {
    let names = walk(folder)?;
    let mut cpio = Command::new("cpio")
        .args([
            "--create",
            "--format=newc",
            "--null",
            "--quiet",
            "--owner=0:0",
        ])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(std::fs::File::create(file)?)
        .spawn()
        .context("cannot start cpio")?;
    let mut input = cpio.stdin.take().context("cpio takes no input")?;
    for name in names {
        input.write_all(name.as_os_str().as_bytes())?;
        input.write_all(b"\0")?;
    }
    drop(input);
    let status = cpio.wait()?;
    if !status.success() {
        bail!("cpio failed ({status})");
    }
    Ok(())
}

/// Returns the relative paths of all files below `folder`, each folder before its content.
fn walk(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for entry in std::fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let name = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(name.clone());
            }
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_gives_every_word_back_as_it_was() {
        let words = ["", "a b", "it's", "$HOME `id` \\ \"", "new\nline", "*"];
        let mut command: Vec<OsString> = vec!["printf".into(), "%s\\0".into()];
        command.extend(words.iter().map(OsString::from));
        let job = Job {
            command,
            folder: "/".into(),
            env: vec![("PATH".into(), std::env::var_os("PATH").unwrap_or_default())],
        };
        let out = Command::new("sh")
            .arg("-c")
            .arg(OsStr::from_bytes(&job.script()))
            .output()
            .expect("there is a shell");
        let text = String::from_utf8(out.stdout).expect("as it went in");
        let back: Vec<&str> = text.split_terminator('\0').collect();
        assert_eq!(back, words);
    }
}
