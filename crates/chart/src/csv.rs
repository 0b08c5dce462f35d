//! The data of a chart as comma-separated values (RFC 4180).

use std::fmt::Write;

use crate::data::Chart;

/// Returns the lines, the header first.
pub(crate) fn csv(chart: &Chart) -> String {
    let mut text = "series,kind,x,y,min,max\n".to_owned();
    for series in &chart.series {
        let name = escape_field(&series.name);
        for point in &series.points {
            let range = point
                .min_and_max
                .map_or_else(|| ",".to_owned(), |(min, max)| format!("{min},{max}"));
            append_line(
                &mut text,
                format_args!("{name},point,{},{},{range}", point.x, point.y),
            );
        }
        for (x, y) in &series.published_points {
            append_line(&mut text, format_args!("{name},published,{x},{y},,"));
        }
        for (x, y) in &series.bound_points {
            append_line(&mut text, format_args!("{name},bound,{x},{y},,"));
        }
    }
    for (name, y) in &chart.constant_levels {
        append_line(
            &mut text,
            format_args!("{},level,,{y},,", escape_field(name)),
        );
    }
    text
}

fn append_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes all");
}

/// Returns the text as a CSV field, in quotes if it contains a comma, a quote or a line end.
fn escape_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use crate::data::{Chart, Point, Series};

    #[test]
    fn names_with_commas_are_quoted_and_ranges_listed() {
        let point = Point {
            x: 1.0,
            y: 2.5,
            min_and_max: Some((2.0, 3.0)),
        };
        let chart = Chart {
            series: vec![
                Series::new("a, \"b\"", [point])
                    .with_published_points([(1.0, 2.0)])
                    .with_bound_points([(1.0, 5.0)]),
            ],
            constant_levels: vec![("most".to_owned(), 4.0)],
            ..Chart::default()
        };
        assert_eq!(
            chart.csv(),
            "series,kind,x,y,min,max\n\"a, \"\"b\"\"\",point,1,2.5,2,3\n\"a, \"\"b\"\"\",published,1,2,,\n\"a, \"\"b\"\"\",bound,1,5,,\nmost,level,,4,,\n"
        );
    }
}
