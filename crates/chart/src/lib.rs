//! Line charts and bars as SVG text, and the data of a chart as comma-separated values.
//!
//! A [`Chart`] is data: series of [`Point`]s over two [`Axis`]es. [`Chart::svg`] draws it, [`Chart::csv`] lists it.
//!
//! - Ticks of the x axis are values of the series, as long as there are at most 24 of them.
//! - A series has a colour, a dash and a marker of its own, so that it is recognised in greyscale, too.
//! - Colours are CSS variables with a second set for `prefers-color-scheme: dark`. Programs without CSS variables use the
//!   presentation attributes, which have the colours of the light set.
//! - `<title>` and `<desc>` say in words what is drawn.

#![forbid(unsafe_code)]

mod bars;
mod csv;
mod data;
mod draw;
mod legend;
mod note;
mod scale;
mod style;
mod text;

pub use bars::{Bar, bars};
pub use data::{Axis, Chart, Numbers, Point, Scale, Series};
pub use text::escape;

impl Chart {
    /// The picture, one `<svg>` element.
    pub fn svg(&self) -> String {
        draw::svg(self)
    }

    /// The data: a header, then a line for each point, `series,kind,x,y,min,max`.
    ///
    /// `kind` is `point`, `published` or `level`; a level has no `x`. `min` and `max` are empty where there was one round.
    pub fn csv(&self) -> String {
        csv::csv(self)
    }
}
