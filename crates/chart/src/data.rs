//! The data of a chart.

/// A value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Position on the x axis.
    pub x: f64,
    /// Position on the y axis: the median if there were several rounds.
    pub y: f64,
    /// Minimum and maximum of the rounds.
    pub min_and_max: Option<(f64, f64)>,
}

impl From<(f64, f64)> for Point {
    fn from((x, y): (f64, f64)) -> Self {
        Point {
            x,
            y,
            min_and_max: None,
        }
    }
}

/// A named curve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points, in the order in which the line joins them.
    pub points: Vec<Point>,
    /// Points (x, y) that others have published for this series, such as those of a paper.
    pub published_points: Vec<(f64, f64)>,
    /// Upper bounds (x, y) of the values, such as those of a model: a thin line in the series' colour.
    pub bound_points: Vec<(f64, f64)>,
    /// True if the values are computed at every x and not sampled: no markers, and ticks at round numbers.
    pub is_drawn_without_markers: bool,
}

impl Series {
    /// Returns a series of samples.
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

    /// Returns a series that is computed at every x.
    pub fn without_markers(
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        Series {
            is_drawn_without_markers: true,
            ..Series::new(name, points)
        }
    }

    /// Adds published values.
    #[must_use]
    pub fn with_published_points(mut self, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        self.published_points.extend(points);
        self
    }

    /// Adds upper bounds of the values.
    #[must_use]
    pub fn with_bound_points(mut self, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        self.bound_points.extend(points);
        self
    }
}

/// Mapping of an axis from values to positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences have equal lengths.
    #[default]
    Linear,
    /// Equal factors have equal lengths. A value of 0 is placed one step before the smallest positive value.
    Log,
    /// [`Scale::Log`] if all values are above 0 and the largest is over 50 times the smallest, else
    /// [`Scale::Linear`].
    Auto,
}

/// Number format of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumberFormat {
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
    /// Mapping from values to positions.
    pub scale: Scale,
    /// Number format.
    pub number_format: NumberFormat,
    /// True if the values are outcomes and not settings: ticks are at round numbers.
    pub has_ticks_at_round_numbers: bool,
}

impl Axis {
    /// Returns an axis with a linear scale.
    pub fn linear(label: impl Into<String>) -> Self {
        Axis {
            label: label.into(),
            ..Axis::default()
        }
    }

    /// Returns an axis with a logarithmic scale.
    pub fn log(label: impl Into<String>) -> Self {
        Axis {
            scale: Scale::Log,
            ..Axis::linear(label)
        }
    }

    /// Returns an axis that is logarithmic if its values span a wide range ([`Scale::Auto`]).
    pub fn auto(label: impl Into<String>) -> Self {
        Axis {
            scale: Scale::Auto,
            ..Axis::linear(label)
        }
    }

    /// Marks the values as outcomes and not settings, so that ticks are at round numbers.
    #[must_use]
    pub fn with_ticks_at_round_numbers(mut self) -> Self {
        self.has_ticks_at_round_numbers = true;
        self
    }

    /// Formats the numbers as bytes.
    #[must_use]
    pub fn in_bytes(mut self) -> Self {
        self.number_format = NumberFormat::Bytes;
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
    /// The x axis: the setting that is varied.
    pub x: Axis,
    /// The y axis: the measured quantity.
    pub y: Axis,
    /// The curves.
    pub series: Vec<Series>,
    /// Named values that hold over the whole x axis.
    pub constant_levels: Vec<(String, f64)>,
}
