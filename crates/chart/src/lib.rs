//! Line charts and bars as SVG text, and the data of a chart as comma-separated values.
//!
//! A [`Chart`] is data: series of [`Point`]s over two [`Axis`]es. [`Chart::svg`] draws the chart, and
//! [`Chart::csv`] lists its values.
//!
//! - Ticks of the x axis are values of the series, if there are at most 24 of them.
//! - Each series has its own colour, dash pattern and marker, so that it can be recognised in greyscale, too.
//! - Colours are CSS variables with a second set for `prefers-color-scheme: dark`. Programs without CSS
//!   variables use the presentation attributes, which have the colours of the light set.
//! - `<title>` and `<desc>` describe the chart in words.

#![forbid(unsafe_code)]

mod bars;
mod coincidence_notes;
mod csv;
mod data;
mod draw;
mod legend;
mod scale;
mod style;
mod text;

pub use bars::{Bar, bar_chart_svg};
pub use data::{Axis, Chart, NumberFormat, Point, Scale, Series};
pub use text::escape;

impl Chart {
    /// Returns the picture, one `<svg>` element.
    pub fn svg(&self) -> String {
        draw::svg(self)
    }

    /// Returns the data: a header, then a line `series,kind,x,y,min,max` for each point.
    ///
    /// `kind` is `point`, `published`, `bound` or `level`; a level has no `x`. `min` and `max` are empty if there was
    /// one round.
    pub fn csv(&self) -> String {
        csv::csv(self)
    }
}
