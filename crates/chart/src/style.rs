//! Colour, dash pattern and marker of a series.

/// Colours that are dark enough on white, and distinguishable with common colour deficiencies.
const LIGHT_PAGE_COLORS: [&str; 8] = [
    "#005aaa", "#c44601", "#00805a", "#a8327e", "#6b4a1e", "#1f86b8", "#6a3ca8", "#96650a",
];
/// Colours of the same hues for a dark page.
const DARK_PAGE_COLORS: [&str; 8] = [
    "#6cb0f0", "#f59a5c", "#4fc79c", "#ea8cc8", "#d0a878", "#7fd0f2", "#b99af0", "#e6b450",
];
/// Dash patterns. The first line is solid, so that it shows through dashed lines above it.
const DASHES: [&str; 8] = [
    "",
    "8 4",
    "2 3",
    "10 3 2 3",
    "14 4",
    "5 2",
    "8 3 2 3 2 3",
    "1 4",
];

/// Colours of the light set, for programs without CSS variables: page, text, faint text, grid.
pub(crate) const PAGE_COLOR: &str = "#ffffff";
pub(crate) const TEXT_COLOR: &str = "#1c2733";
pub(crate) const FAINT_TEXT_COLOR: &str = "#566270";
pub(crate) const GRID_COLOR: &str = "#dfe4e9";

/// Returns the style sheet of a chart. Its rules apply only within `svg.chart`, so that a page can contain
/// the picture.
pub(crate) fn sheet() -> String {
    let set = |page: &str, ink: &str, dim: &str, grid: &str, colors: &[&str]| {
        let mut text = format!("--page:{page};--ink:{ink};--dim:{dim};--grid:{grid}");
        for (index, color) in colors.iter().enumerate() {
            text.push_str(&format!(";--s{index}:{color}"));
        }
        text
    };
    let light = set(
        PAGE_COLOR,
        TEXT_COLOR,
        FAINT_TEXT_COLOR,
        GRID_COLOR,
        &LIGHT_PAGE_COLORS,
    );
    let dark = set(
        "#14191f",
        "#e4e9ee",
        "#a3afbb",
        "#323c46",
        &DARK_PAGE_COLORS,
    );
    let mut sheet = format!(
        "svg.chart{{{light};color-scheme:light dark}}\
         @media (prefers-color-scheme:dark){{svg.chart{{{dark}}}}}\
         @media print{{svg.chart{{{light}}}}}\
         .chart .page{{fill:var(--page)}}.chart .ink{{fill:var(--ink)}}.chart .dim{{fill:var(--dim)}}\
         .chart .grid{{stroke:var(--grid)}}.chart .axis{{stroke:var(--dim)}}"
    );
    for index in 0..LIGHT_PAGE_COLORS.len() {
        sheet.push_str(&format!(
            ".chart .s{index}{{stroke:var(--s{index})}}.chart .f{index}{{fill:var(--s{index})}}"
        ));
    }
    sheet
}

/// Returns the colour index of a series.
pub(crate) fn color_index(series: usize) -> usize {
    series % LIGHT_PAGE_COLORS.len()
}

/// Returns the attributes of a series' line.
pub(crate) fn line_attributes(series: usize) -> String {
    let index = color_index(series);
    format!(r#"class="s{index}" stroke="{}""#, LIGHT_PAGE_COLORS[index])
}

/// Returns the attributes of a series' filled area.
pub(crate) fn area_attributes(series: usize) -> String {
    let index = color_index(series);
    format!(r#"class="f{index}" fill="{}""#, LIGHT_PAGE_COLORS[index])
}

/// Returns the dash pattern of a series as an attribute. Series that reuse a colour have another pattern, so
/// that no two look alike.
pub(crate) fn dash_attribute(series: usize) -> String {
    match DASHES[(series + series / LIGHT_PAGE_COLORS.len()) % DASHES.len()] {
        "" => String::new(),
        dashes => format!(r#" stroke-dasharray="{dashes}""#),
    }
}

/// The attributes of a line of bounds, in any colour.
pub(crate) const BOUND_LINE_ATTRIBUTES: &str = r#" stroke-width="1.2" stroke-dasharray="1 3""#;

/// Returns the outline of a series' marker at a position.
pub(crate) fn marker_path(series: usize, x: f64, y: f64) -> String {
    let corners: &[(f64, f64)] = match series % 7 {
        0 => return format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
        1 => &[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)],
        2 => &[(0.0, -4.8), (4.5, 3.4), (-4.5, 3.4)],
        3 => &[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)],
        4 => &[(0.0, 4.8), (4.5, -3.4), (-4.5, -3.4)],
        5 => &[(-4.8, 0.0), (3.4, -4.5), (3.4, 4.5)],
        _ => &[(-5.0, -1.8), (5.0, -1.8), (5.0, 1.8), (-5.0, 1.8)],
    };
    let place = |(dx, dy): &(f64, f64)| format!("{:.1} {:.1}", x + dx, y + dy);
    let all: Vec<_> = corners.iter().map(place).collect();
    format!("M{}z", all.join("L"))
}
