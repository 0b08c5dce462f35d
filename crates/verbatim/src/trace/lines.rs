//! Reading a trace line by line.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tap::trace::Line;

/// The lines of a trace.
pub(super) struct Lines {
    file: BufReader<File>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Lines of a trace so far.
    pub(super) read: u64,
    /// Lines that are neither that nor comments.
    pub(super) strange: u64,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self {
            file: BufReader::new(file),
            path: path.to_owned(),
            buffer: Vec::new(),
            read: 0,
            strange: 0,
        })
    }

    /// The next line that says something.
    pub(super) fn next(&mut self) -> Result<Option<Line>> {
        loop {
            self.buffer.clear();
            let read = self.file.read_until(b'\n', &mut self.buffer);
            if read.with_context(|| format!("cannot read {}", self.path.display()))? == 0 {
                return Ok(None);
            }
            let text = String::from_utf8_lossy(&self.buffer);
            if text.starts_with('#') || text.trim().is_empty() {
                continue;
            }
            match Line::parse(&text) {
                Some(line) => {
                    self.read += 1;
                    return Ok(Some(line));
                }
                None => self.strange += 1,
            }
        }
    }
}
