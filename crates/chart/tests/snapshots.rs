//! Compares pictures with stored snapshots. `CHART_UPDATE=1 cargo test -p chart` rewrites the snapshots; look
//! at them then.

use chart::{Axis, Chart, Point, Series};

fn matches(name: &str, drawn: &str) {
    let file = format!("{}/tests/snapshots/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("CHART_UPDATE").is_some() {
        std::fs::write(&file, drawn).expect("the folder is writable");
    }
    let kept = std::fs::read_to_string(&file).expect("the snapshot is there");
    let differs = kept.lines().zip(drawn.lines()).position(|(a, b)| a != b);
    assert!(
        kept == drawn,
        "{name} differs from line {:?} on; CHART_UPDATE=1 writes it anew",
        differs.map(|line| line + 1)
    );
}

fn measured(points: &[(f64, f64, f64, f64)]) -> Vec<Point> {
    let point = |&(x, y, min, max): &(f64, f64, f64, f64)| Point {
        x,
        y,
        min_and_max: Some((min, max)),
    };
    points.iter().map(point).collect()
}

#[test]
fn a_sweep_over_payloads() {
    let small = [
        (0.0, 9.1, 8.7, 9.2),
        (8.0, 8.9, 8.8, 9.0),
        (64.0, 8.8, 8.1, 8.9),
    ];
    let large = [
        (512.0, 6.2, 6.0, 6.4),
        (4096.0, 1.9, 1.7, 2.0),
        (65536.0, 0.12, 0.11, 0.13),
    ];
    let writes = measured(&[small, large].concat());
    let reads = writes.iter().map(|p| Point {
        y: 0.7 * p.y,
        min_and_max: None,
        ..*p
    });
    let reads: Vec<_> = reads.collect();
    let chart = Chart {
        title: "WRITEs & READs over RC".to_owned(),
        caption: "software NIC softnic0, window 64, batch 16; median of 3 rounds of 100 ms"
            .to_owned(),
        x: Axis::log("payload, bytes").in_bytes(),
        y: Axis::auto("10⁶ messages a second"),
        series: vec![
            Series::new("RC WRITE", writes),
            Series::new("RC READ", reads),
        ],
        constant_levels: Vec::new(),
    };
    matches("sweep.svg", &chart.svg());
    matches("sweep.csv", &chart.csv());
}

#[test]
fn published_points_levels_and_hidden_series() {
    let cores = [1.0, 2.0, 4.0, 8.0, 14.0];
    let of = |rate: f64| cores.map(|n| (n, (n * rate).min(30.0)));
    let chart = Chart {
        title: "A sequencer over cores".to_owned(),
        caption: "simulated".to_owned(),
        x: Axis::linear("cores of the server"),
        y: Axis::auto("10⁶ requests a second"),
        series: vec![
            Series::new("rpc", of(5.0)).with_published_points([(1.0, 4.2), (10.0, 26.0)]),
            Series::new("rpc-batch", of(9.0)),
            Series::new("rpc-batch-mq", of(9.05)),
            Series::new("one point", [(14.0, 12.0)]),
        ],
        constant_levels: vec![("published peak".to_owned(), 31.0)],
    };
    let drawn = chart.svg();
    assert!(drawn.contains("“rpc-batch” and “rpc-batch-mq” coincide from 1 to 14."));
    matches("sequencer.svg", &drawn);
}

#[test]
fn bounds_are_thin_lines_in_the_colour_of_their_series() {
    let sizes = [1024.0, 16384.0, 262_144.0];
    let of = |ys: [f64; 3]| sizes.into_iter().zip(ys);
    let chart = Chart {
        title: "Bus bandwidth of all-reduce".to_owned(),
        x: Axis::log("buffer, bytes").in_bytes(),
        y: Axis::auto("10⁹ bytes a second"),
        series: vec![
            Series::new("2 ranks", of([0.3, 3.1, 9.2])).with_bound_points(of([2.7, 12.5, 12.9])),
            Series::new("64 ranks", of([0.009, 0.14, 1.8]))
                .with_bound_points(of([0.08, 1.3, 12.5])),
        ],
        ..Chart::default()
    };
    matches("bounds.svg", &chart.svg());
}

#[test]
fn functions_have_round_ticks_and_no_markers() {
    let bytes =
        |step: u32| (1..=1024u32).map(move |n| (f64::from(n), f64::from(n.div_ceil(step) * step)));
    let chart = Chart {
        title: "Bytes on the link".to_owned(),
        x: Axis::linear("data, bytes"),
        y: Axis::linear("bytes"),
        series: vec![
            Series::without_markers("lines of 64", bytes(64)),
            Series::without_markers("lines of 256", bytes(256)),
        ],
        ..Chart::default()
    };
    matches("function.svg", &chart.svg());
}

#[test]
fn many_series_look_different_and_nothing_is_no_reason_to_fail() {
    let one = |n: u32| {
        Series::new(
            format!("series {n}"),
            [(1.0, f64::from(n)), (2.0, f64::from(n))],
        )
    };
    let many = Chart {
        series: (1..=16).map(one).collect(),
        ..Chart::default()
    };
    let drawn = many.svg();
    let lines = drawn
        .lines()
        .filter(|line| line.contains("stroke-linejoin"));
    let look = |line: &str| line.split(" fill=").next().expect("a part").to_owned();
    let mut looks: Vec<_> = lines.map(look).collect();
    assert_eq!(looks.len(), 16);
    looks.sort();
    looks.dedup();
    assert_eq!(looks.len(), 16, "{looks:?}");
    let empty = Chart::default().svg();
    let odd = Chart {
        series: vec![Series::new("odd", [(f64::NAN, 1.0), (1.0, f64::INFINITY)])],
        constant_levels: vec![("nan".to_owned(), f64::NAN)],
        ..Chart::default()
    };
    for drawn in [empty, odd.svg()] {
        assert!(drawn.starts_with("<svg") && !drawn.contains("NaN") && !drawn.contains("inf"));
    }
}
