//! Libraries to preload, and the choice of programs that preload the software NIC's libibverbs.
//!
//! Python wheels contain their own libibverbs under a name that no search path replaces. A preloaded library takes
//! precedence over the wheel's library. All other programs find the software NIC by the search path.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::{Result, bail};

use crate::program::{file_that_execvp_runs, first_line};

/// Environment variable that names the libraries that the loader loads before the libraries of a program.
pub(super) const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Returns the value for `LD_PRELOAD`: `library`, then the libraries in this process's `LD_PRELOAD`.
pub(crate) fn ld_preload_value(library: &Path) -> Result<OsString> {
    // ld.so(8): "The items of the list can be separated by spaces or colons, and there is no support for escaping".
    if library
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|b| b": $".contains(b))
    {
        bail!(
            "{} has a space, a colon or a dollar sign in it, which {PRELOAD_VARIABLE} cannot say; move it elsewhere",
            library.display()
        );
    }
    let mut libraries = library.as_os_str().to_owned();
    let before = std::env::var_os(PRELOAD_VARIABLE);
    if let Some(before) = before.as_deref().filter(|libraries| !libraries.is_empty()) {
        libraries.push(OsStr::new(":"));
        libraries.push(before);
    }
    Ok(libraries)
}

/// Returns true if a program is a Python interpreter, or a script for one.
pub(super) fn runs_python(program: &OsStr) -> bool {
    let Some(file) = file_that_execvp_runs(program, std::env::var_os("PATH").as_deref()) else {
        return false;
    };
    is_python(program)
        || file
            .canonicalize()
            .is_ok_and(|file| is_python(file.as_os_str()))
        || { first_line(&file).is_some_and(|line| names_python(&line)) }
}

/// Returns true if the file's name is that of a Python interpreter, such as `python`, `python3.11` or `pypy3`.
fn is_python(file: &OsStr) -> bool {
    let name = Path::new(file).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let version = name
        .strip_prefix("python")
        .or_else(|| name.strip_prefix("pypy"));
    version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Returns true if the first line of a script names Python as its interpreter, directly or by `env(1)`.
fn names_python(line: &str) -> bool {
    line.strip_prefix("#!").is_some_and(|words| {
        words
            .split_ascii_whitespace()
            .any(|word| is_python(&OsString::from(word)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_to_preload_must_be_speakable() {
        let libraries =
            ld_preload_value(Path::new("/opt/verbatim/libverbatim_tap.so")).expect("a plain path");
        assert!(libraries.to_string_lossy().starts_with("/opt/verbatim/"));
        for wrong in ["/a b", "/a:b", "/$LIB/a"] {
            assert!(ld_preload_value(Path::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn interpreters_are_told_from_other_programs() {
        for name in ["python", "python3", "/venv/bin/python3.11", "pypy3"] {
            assert!(is_python(OsStr::new(name)), "{name}");
        }
        for name in ["python3-config", "ipython3", "/opt/python/ib_write_bw", ""] {
            assert!(!is_python(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn scripts_name_their_interpreter() {
        for line in [
            "#!/venv/bin/python3",
            "#!/usr/bin/env -S python3 -u",
            "#! /usr/bin/python",
        ] {
            assert!(names_python(line), "{line}");
        }
        for line in ["#!/bin/sh", "# python3", "\u{7f}ELF", ""] {
            assert!(!names_python(line), "{line}");
        }
    }

    #[test]
    fn a_script_for_python_runs_python() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job");
        std::fs::write(&file, "#!/usr/bin/env python3\n").expect("written");
        assert!(runs_python(file.as_os_str()));
    }
}
