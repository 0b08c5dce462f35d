//! Curves as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Curves over one axis, and points beside them.
pub(crate) struct Chart<'a> {
    pub(crate) caption: String,
    /// What the axes show, with their units.
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
    /// Whether the x axis is logarithmic.
    pub(crate) log: bool,
    /// Each with its name.
    pub(crate) curves: &'a [(String, Vec<(f64, f64)>)],
    /// Points that are marked, and what they are.
    pub(crate) marks: Vec<(f64, f64)>,
    pub(crate) marks_are: &'a str,
}

impl Chart<'_> {
    /// The picture.
    ///
    /// # Errors
    /// Those of the library that draws.
    pub(crate) fn svg(&self) -> Result<String> {
        let mut text = String::new();
        // Errors of the backend borrow it.
        self.render(&mut text)
            .map_err(|error| anyhow!("cannot draw: {error}"))?;
        Ok(text)
    }

    fn render(&self, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let place = |x: f64| if self.log { x.log2() } else { x };
        let marked: Vec<_> = self.marks.iter().map(|&(x, y)| (place(x), y)).collect();
        let all = self.curves.iter().flat_map(|(_, points)| points);
        let all = all
            .map(|&(x, y)| (place(x), y))
            .chain(marked.iter().copied());
        let (mut left, mut right, mut top) = (f64::INFINITY, f64::NEG_INFINITY, 0.0f64);
        for (x, y) in all {
            (left, right, top) = (left.min(x), right.max(x), top.max(y));
        }
        let root = SVGBackend::with_string(text, (760, 480)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.caption, ("sans-serif", 15))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(58)
            .build_cartesian_2d(left..right, 0.0..1.1 * top)?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&|x| {
                let x = if self.log { x.exp2() } else { *x };
                format!("{x:.0}")
            })
            .light_line_style(WHITE)
            .draw()?;
        for (index, (name, points)) in self.curves.iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let line = points.iter().map(|&(x, y)| (place(x), y));
            chart
                .draw_series(LineSeries::new(line, color.stroke_width(2)))?
                .label(name.as_str())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                });
        }
        let marks = marked
            .iter()
            .map(|&point| Circle::new(point, 4, BLACK.stroke_width(2)));
        let drawn = chart.draw_series(marks)?;
        if !marked.is_empty() {
            drawn
                .label(self.marks_are)
                .legend(|(x, y)| Circle::new((x + 9, y), 4, BLACK.stroke_width(2)));
        }
        let starts = |(_, points): &(String, Vec<(f64, f64)>)| points.first().map_or(0.0, |p| p.1);
        let rising = self.curves.iter().all(|curve| starts(curve) < 0.5 * top);
        chart
            .configure_series_labels()
            .position(if rising {
                SeriesLabelPosition::UpperLeft
            } else {
                SeriesLabelPosition::MiddleRight
            })
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        root.present()?;
        Ok(())
    }
}
