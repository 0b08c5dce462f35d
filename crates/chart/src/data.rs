//! The data of a chart.

/// A value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Place on the x axis.
    pub x: f64,
    /// Place on the y axis: the median, where there were several rounds.
    pub y: f64,
    /// Least and most of the rounds.
    pub range: Option<(f64, f64)>,
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Self {
        Point { x, y, range: None }
    }
}

/// A named curve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// In the order in which they are joined.
    pub points: Vec<Point>,
    /// Values that somebody else published for this series.
    pub published: Vec<(f64, f64)>,
    /// The values are computed at every x, not sampled: no markers, and ticks at round numbers.
    pub is_function: bool,
}

impl Series {
    /// A series of samples.
    pub fn new(
        name: impl Into<String>,
        points: impl IntoIterator<Item = impl Into<Point>>,
    ) -> Self {
        Series {
            name: name.into(),
            points: points.into_iter().map(Into::into).collect(),
            ..Series::default()
        }
    }

    /// A series that is computed at every x.
    pub fn function(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Series {
            is_function: true,
            ..Series::new(name, points)
        }
    }

    /// The same with published values.
    #[must_use]
    pub fn published(mut self, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        self.published.extend(points);
        self
    }
}

/// How values of an axis are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps are equally long.
    #[default]
    Linear,
    /// Equal factors are equally long. A value of 0 has a place of its own, one step before the least.
    Log,
    /// [`Scale::Log`] where all values are above 0 and the most is over 50 times the least, else [`Scale::Linear`].
    Auto,
}

/// How numbers of an axis are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// Decimal.
    #[default]
    Decimal,
    /// Bytes: `4K` for 4096, `1M` for 1048576.
    Bytes,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// How values are placed.
    pub scale: Scale,
    /// How numbers are written.
    pub numbers: Numbers,
    /// Values are outcomes and not settings: ticks are at round numbers.
    pub is_outcome: bool,
}

impl Axis {
    /// An axis with equal steps.
    pub fn linear(label: impl Into<String>) -> Self {
        Axis {
            label: label.into(),
            ..Axis::default()
        }
    }

    /// An axis with equal factors.
    pub fn log(label: impl Into<String>) -> Self {
        Axis {
            scale: Scale::Log,
            ..Axis::linear(label)
        }
    }

    /// An axis that is logarithmic where its values span decades.
    pub fn auto(label: impl Into<String>) -> Self {
        Axis {
            scale: Scale::Auto,
            ..Axis::linear(label)
        }
    }

    /// The same with ticks at round numbers, for values that are outcomes and not settings.
    #[must_use]
    pub fn of_outcomes(mut self) -> Self {
        self.is_outcome = true;
        self
    }

    /// The same with numbers of bytes.
    #[must_use]
    pub fn in_bytes(mut self) -> Self {
        self.numbers = Numbers::Bytes;
        self
    }
}

/// A line chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// The title, one line.
    pub title: String,
    /// The settings: NIC, kind of measurement, rounds.
    pub caption: String,
    /// The knob that is turned.
    pub x: Axis,
    /// What is measured.
    pub y: Axis,
    /// The curves.
    pub series: Vec<Series>,
    /// Values that hold for all of the x axis, each with its name.
    pub levels: Vec<(String, f64)>,
}
