//! `--svg` and `--csv` of all commands that measure several values: writes the files, and makes
//! points with their range.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bench::stats::MedianAndSpread;
use chart::{Chart, Point};

use crate::args::{check_output_file_path, refuse_same_output_file};
use crate::output::write_file;
use crate::steps::steps_if_interrupted_early;

/// Files that a command leaves beside what it prints.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct PictureArgs {
    /// Draw the results into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Write the results to this file as comma-separated values: a line for each point
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
}

impl PictureArgs {
    /// Refuses files that cannot be written, before the measurement starts.
    pub(crate) fn check_files_writable(&self) -> Result<()> {
        let files = [("--svg", &self.svg), ("--csv", &self.csv)];
        refuse_same_output_file(&files.map(|(flag, file)| (flag, file.as_deref())))?;
        files
            .into_iter()
            .filter_map(|(flag, file)| Some((flag, file.as_deref()?)))
            .try_for_each(|(flag, file)| check_can_be_written(file).context(flag))
    }

    /// Writes the files that the user wants.
    pub(crate) fn write_requested_files(&self, chart: &Chart) -> Result<()> {
        if let Some(file) = &self.csv {
            write_file(file, &chart.csv())?;
        }
        self.write_svg(chart)
    }

    /// Writes only the picture, for commands that write a CSV file with their own columns.
    pub(crate) fn write_svg(&self, chart: &Chart) -> Result<()> {
        match &self.svg {
            Some(file) => write_file(file, &svg_with_interrupt_note(chart)),
            None => Ok(()),
        }
    }
}

/// Draws a chart. The caption of an interrupted measurement says so.
pub(crate) fn svg_with_interrupt_note(chart: &Chart) -> String {
    let Some((done, of)) = steps_if_interrupted_early() else {
        return chart.svg();
    };
    let caption = format!("{}; interrupted: {done} of {of} steps", chart.caption);
    let chart = Chart {
        caption,
        ..chart.clone()
    };
    chart.svg()
}

/// Checks that a file can be opened for writing, without changing the file.
fn check_can_be_written(file: &Path) -> Result<()> {
    check_output_file_path(file)?;
    let was_there = file.exists();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .with_context(|| format!("cannot write {}; name another file", file.display()))?;
    if !was_there {
        std::fs::remove_file(file).with_context(|| format!("cannot replace {}", file.display()))?;
    }
    Ok(())
}

/// Returns a point of a chart for the figures of several rounds, in units of `unit`.
pub(crate) fn chart_point_of_spread(x: f64, spread: MedianAndSpread, unit: f64) -> Point {
    let range = (spread.min / unit, spread.max / unit);
    Point {
        x,
        y: spread.median / unit,
        min_and_max: (range.0 < range.1).then_some(range),
    }
}

/// Returns the setting of a knob as a coordinate of a chart.
#[allow(clippy::cast_precision_loss)] // settings are far below 2^52
pub(crate) fn axis_coordinate(setting: usize) -> f64 {
    setting as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_leaves_files_as_they_were() {
        let folder = tempfile::tempdir().expect("a folder");
        let (new, old) = (folder.path().join("new.svg"), folder.path().join("old.csv"));
        std::fs::write(&old, "kept").expect("written");
        let args = PictureArgs {
            svg: Some(new.clone()),
            csv: Some(old.clone()),
        };
        args.check_files_writable().expect("both can be written");
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(&old).expect("there"), "kept");
        let missing = PictureArgs {
            svg: Some(folder.path().join("no/new.svg")),
            csv: None,
        };
        let error = format!(
            "{:#}",
            missing.check_files_writable().expect_err("no folder")
        );
        assert!(error.starts_with("--svg: the folder"), "{error}");
    }
}
