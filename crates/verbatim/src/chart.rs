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
    /// Values that hold for all of the x axis, each with its name.
    pub(crate) levels: &'a [(String, f64)],
    /// Points that are marked, and what they are.
    pub(crate) marks: Vec<(f64, f64)>,
    pub(crate) marks_are: &'a str,
}

/// Pixels: the plot, and beside it a line of each curve's colour before its name.
const PLOT: u32 = 760;
const HEIGHT: u32 = 480;
const SAMPLE: u32 = 18;
/// Of the name's letters, more than most fonts need.
const LETTER: u32 = 7;

/// Colours that are told apart on white, by most who do not see all of them too, and printed grey.
const COLORS: [RGBColor; 9] = [
    RGBColor(0, 90, 170),
    RGBColor(205, 75, 0),
    RGBColor(0, 135, 95),
    RGBColor(180, 60, 130),
    RGBColor(120, 75, 30),
    RGBColor(70, 160, 215),
    RGBColor(110, 60, 170),
    RGBColor(215, 140, 0),
    RGBColor(110, 110, 110),
];

/// The colour of a curve, by its place among them.
fn color(index: usize) -> RGBColor {
    COLORS[index % COLORS.len()]
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
        let highest = self.levels.iter().map(|(_, y)| *y).fold(0.0, f64::max);
        let (mut left, mut right, mut top) = (f64::INFINITY, f64::NEG_INFINITY, highest);
        for (x, y) in all {
            (left, right, top) = (left.min(x), right.max(x), top.max(y));
        }
        let names = self.curves.iter().map(|(name, _)| name.as_str());
        let names: Vec<&str> = names
            .chain(self.levels.iter().map(|(name, _)| name.as_str()))
            .chain((!marked.is_empty()).then_some(self.marks_are))
            .collect();
        let longest = names.iter().map(|name| name.chars().count()).max();
        let legend = SAMPLE + 18 + LETTER * u32::try_from(longest.unwrap_or(0))?;
        let picture = SVGBackend::with_string(text, (PLOT + legend, HEIGHT)).into_drawing_area();
        picture.fill(&WHITE)?;
        // Beside the curves the names cover none.
        let (plot, legend) = picture.split_horizontally(PLOT);
        let mut chart = ChartBuilder::on(&plot)
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
            .y_label_formatter(&|y| match top {
                10.0.. => format!("{y:.0}"),
                1.0.. => format!("{y:.1}"),
                _ => format!("{y:.2}"),
            })
            .light_line_style(WHITE)
            .draw()?;
        for (index, (_, points)) in self.curves.iter().enumerate() {
            let color = color(index).stroke_width(2);
            let line = points.iter().map(|&(x, y)| (place(x), y));
            chart.draw_series(LineSeries::new(line, color))?;
        }
        let mark = BLACK.stroke_width(2);
        for (_, y) in self.levels {
            let line = [(left, *y), (right, *y)];
            chart.draw_series(DashedLineSeries::new(line, 6, 4, BLACK.stroke_width(1)))?;
        }
        chart.draw_series(marked.iter().map(|&point| Circle::new(point, 4, mark)))?;
        let text_at = i32::try_from(SAMPLE + 6)?;
        for (index, name) in names.into_iter().enumerate() {
            let y = 48 + 20 * i32::try_from(index)?;
            let line = [(0, y), (text_at - 6, y)];
            if index < self.curves.len() {
                let color = color(index).stroke_width(2);
                legend.draw(&PathElement::new(line, color))?;
            } else if index < self.curves.len() + self.levels.len() {
                let dashes =
                    plotters::element::DashedPathElement::new(line, 6, 4, BLACK.stroke_width(1));
                legend.draw(&dashes)?;
            } else {
                legend.draw(&Circle::new((9, y), 4, mark))?;
            }
            legend.draw(&Text::new(name, (text_at, y - 6), ("sans-serif", 12)))?;
        }
        picture.present()?;
        Ok(())
    }
}
