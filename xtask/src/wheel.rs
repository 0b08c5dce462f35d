//! `cargo xtask wheel` builds the Python wheel; `cargo xtask python` tests it in a separate virtual
//! environment.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo_output::TestCounts;
use crate::dropin;
use crate::paths::{target_dir, workspace};

/// Arguments of `cargo xtask wheel`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build quickly, for tests: the profile dev
    #[arg(long)]
    dev: bool,
    /// Where the wheel goes
    #[arg(long, value_name = "DIR", default_value = "target/wheels")]
    out: PathBuf,
}

/// Arguments of `cargo xtask python`.
#[derive(clap::Args)]
pub(crate) struct TestArgs {
    /// Arguments of pytest
    #[arg(last = true)]
    pytest: Vec<String>,
}

/// The PyPI packages that a build needs.
const BUILD_PACKAGES: &[&str] = &["maturin"];
/// The PyPI packages that the tests need beside those that the wheel names.
const TEST_PACKAGES: &[&str] = &["ml_dtypes", "pytest"];

/// Runs `cargo xtask wheel`.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let environment = VirtualEnvironment::get_or_create("build")?;
    let wheel = build(&environment, args.dev, &workspace().join(&args.out))?;
    println!("try: pip install {}", wheel.display());
    Ok(true)
}

/// Runs `cargo xtask python`; returns false if a test failed.
pub(crate) fn test(args: &TestArgs) -> Result<bool> {
    let environment = VirtualEnvironment::get_or_create("build")?;
    let out = target_dir().join("python/wheels");
    let wheel = build(&environment, true, &out)?;
    // Use a new environment: an earlier installation must not affect the test.
    let fresh = VirtualEnvironment::create("test")?;
    fresh.pip(&["install", "-q"], &[&wheel])?;
    // The packages that the wheel names are enough.
    succeed(
        fresh
            .command("python")
            .args(["-c", "import verbatim.tensor"]),
    )?;
    fresh.pip(&["install", "-q"], TEST_PACKAGES)?;
    println!("     Running python/tests ({})", wheel.display());
    let mut command = fresh.command("python");
    command
        .args(["-m", "pytest", "-p", "no:cacheprovider", "-q", "-rf"])
        .args(&args.pytest)
        .current_dir(workspace().join("python"))
        // The environment's folder of programs comes first, so that its `verbatim` is found.
        .env("PATH", fresh.path()?);
    let counts = pytest(&mut command)?;
    Ok(counts.failed == 0 && counts.passed > 0)
}

/// Runs pytest, and prints its results in libtest's format.
fn pytest(command: &mut Command) -> Result<TestCounts> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start pytest")?;
    let stdout = child.stdout.take().context("pytest has no output")?;
    let mut counts = None;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        if let Some(name) = line.strip_prefix("FAILED ") {
            let name = name.split(" - ").next().unwrap_or(name);
            println!("test {name} ... FAILED");
        } else {
            println!("{line}");
        }
        counts = summary(&line).or(counts);
    }
    let status = child.wait()?;
    let mut counts = counts.unwrap_or(TestCounts::ONE_FAILED);
    if !status.success() && counts.failed == 0 {
        counts += TestCounts::ONE_FAILED;
    }
    let TestCounts {
        passed,
        failed,
        skipped,
    } = counts;
    println!("running {} tests", counts.total());
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "test result: {verdict}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured;"
    );
    Ok(counts)
}

/// Parses `1 failed, 12 passed, 1 skipped in 3.21s` → counts.
fn summary(line: &str) -> Option<TestCounts> {
    let line = line.trim_matches(['=', ' ']);
    let (parts, time) = line.rsplit_once(" in ")?;
    time.split_once('s')?.0.parse::<f64>().ok()?;
    let mut counts = TestCounts::default();
    for part in parts.split(", ") {
        let (number, what) = part.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        match what {
            "passed" => counts.passed += number,
            "failed" | "error" | "errors" => counts.failed += number,
            "skipped" => counts.skipped += number,
            _ => {}
        }
    }
    (counts.total() > 0).then_some(counts)
}

/// Builds the command line program, its libraries and the wheel; returns the wheel's path.
fn build(environment: &VirtualEnvironment, dev: bool, out: &Path) -> Result<PathBuf> {
    let installed = workspace().join("python/package/verbatim/_installed");
    if installed.exists() {
        fs::remove_dir_all(&installed)?;
    }
    if !dropin::install_built(dev, &installed)? {
        bail!("the command and its libraries cannot be built");
    }
    if out.exists() {
        remove_wheels(out)?;
    }
    let profile = if dev { "dev" } else { "release" };
    let mut command = environment.command("maturin");
    command
        .args(["build", "--quiet", "--profile", profile, "--out"])
        .arg(out)
        .arg("--interpreter")
        .arg(environment.program("python"))
        .current_dir(workspace().join("python"))
        .env("PATH", environment.path()?);
    succeed(&mut command)?;
    let wheels = wheels(out)?;
    match &wheels[..] {
        [wheel] => Ok(wheel.clone()),
        _ => bail!("{} wheels in {}", wheels.len(), out.display()),
    }
}

fn wheels(folder: &Path) -> Result<Vec<PathBuf>> {
    let files =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let paths = files.map(|file| Ok(file?.path()));
    let paths = paths.collect::<Result<Vec<_>>>()?;
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|e| e == "whl");
    Ok(paths.into_iter().filter(is_wheel).collect())
}

fn remove_wheels(folder: &Path) -> Result<()> {
    for wheel in wheels(folder)? {
        fs::remove_file(wheel)?;
    }
    Ok(())
}

/// A virtual environment of Python, in the folder that the field names.
struct VirtualEnvironment(PathBuf);

impl VirtualEnvironment {
    /// Returns the virtual environment with the name `name`, which has [`BUILD_PACKAGES`]. It
    /// is created once.
    fn get_or_create(name: &str) -> Result<Self> {
        let environment = Self(target_dir().join("python").join(name));
        let marker = environment.0.join("complete");
        let needed = BUILD_PACKAGES.join(" ");
        if fs::read_to_string(&marker).is_ok_and(|had| had == needed) {
            return Ok(environment);
        }
        environment.make()?;
        environment.pip(&["install", "-q"], BUILD_PACKAGES)?;
        fs::write(marker, needed)?;
        Ok(environment)
    }

    /// Creates a new virtual environment without packages.
    fn create(name: &str) -> Result<Self> {
        let environment = Self(target_dir().join("python").join(name));
        if environment.0.exists() {
            fs::remove_dir_all(&environment.0)?;
        }
        environment.make()?;
        Ok(environment)
    }

    fn make(&self) -> Result<()> {
        // Prefer the system's Python, for which Debian packages venv.
        let system = Path::new("/usr/bin/python3");
        let python = if system.exists() {
            system
        } else {
            Path::new("python3")
        };
        succeed(Command::new(python).args(["-m", "venv"]).arg(&self.0))
    }

    fn program(&self, name: &str) -> PathBuf {
        self.0.join("bin").join(name)
    }

    fn command(&self, name: &str) -> Command {
        Command::new(self.program(name))
    }

    /// Returns the search path of programs, in which the environment's own folder comes first.
    fn path(&self) -> Result<std::ffi::OsString> {
        let before = std::env::var_os("PATH").unwrap_or_default();
        let own = std::iter::once(self.0.join("bin"));
        Ok(std::env::join_paths(
            own.chain(std::env::split_paths(&before)),
        )?)
    }

    fn pip<T: AsRef<std::ffi::OsStr>>(&self, words: &[&str], what: &[T]) -> Result<()> {
        let mut command = self.command("python");
        command.args(["-m", "pip", "--disable-pip-version-check"]);
        succeed(command.args(words).args(what))
    }
}

fn succeed(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown} failed ({status})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_of_pytest_is_counted() {
        let counts = |line| summary(line).map(|c| (c.passed, c.failed, c.skipped));
        assert_eq!(counts("4 passed in 2.37s"), Some((4, 0, 0)));
        let line =
            "==== 1 failed, 12 passed, 2 skipped, 1 warning, 1 error in 63.21s (0:01:03) ====";
        assert_eq!(counts(line), Some((12, 2, 2)));
        assert_eq!(counts("no tests ran in 0.01s"), None);
        assert_eq!(counts("running in circles"), None);
    }
}
