//! Charts as they are drawn, compared with those in tests/pictures, and a page as a browser shows
//! it.

mod browser;

use std::path::Path;

use fabricast_charts::{
    Figure, Lane, Lanes, Line, Page, Picture, Point, Scale, Section, Table, short,
};

fn sizes() -> Vec<f64> {
    (0..12).map(|n| 8.0 * 4f64.powi(n)).collect()
}

/// Two lines that lie close to each other, with intervals.
fn figure() -> Figure {
    let line = |look: usize, name: &str, factor: f64| {
        let points = sizes().into_iter().map(|x| {
            let y = factor * 6.0 * x / (x + 40_000.0);
            let (low, high) = (y * 0.9, y * 1.07);
            Point { x, y, low, high }
        });
        Line {
            name: name.to_owned(),
            look,
            points: points.collect(),
        }
    };
    let lines = vec![
        line(0, "fabricast", 1.0),
        line(1, "bare loop over libfabric", 0.8),
    ];
    let values: Vec<_> = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|it| it.y)
        .collect();
    Figure {
        title: "Bandwidth".to_owned(),
        description: "Bandwidth over the size of a message.".to_owned(),
        x: Scale::sizes("size of a message", sizes()),
        y: Scale::amounts("GB/s", values),
        lines,
    }
}

/// A line of each look, as curves of percentiles.
fn tails() -> Figure {
    let percents: Vec<f64> = (0..60)
        .map(|n| 100.0 * (1.0 - 0.5 * 10f64.powf(-f64::from(n) / 15.0)))
        .collect();
    let lines = (0..fabricast_charts::LOOKS).map(|look| Line {
        name: format!("look {look}"),
        look,
        points: percents
            .iter()
            .map(|p| Point::exact(*p, (12.0 + 9.0 * look as f64) / (100.0 - p).powf(0.4)))
            .collect(),
    });
    let lines: Vec<_> = lines.collect();
    let values: Vec<_> = lines
        .iter()
        .flat_map(|line| &line.points)
        .map(|it| it.y)
        .collect();
    Figure {
        title: "Latency".to_owned(),
        description: "Half a round trip by percentile.".to_owned(),
        x: Scale::percentiles("percentile"),
        y: Scale::amounts("microseconds", values),
        lines,
    }
}

fn lanes() -> Lanes {
    let lane = |look: usize, name: &str, period: usize| Lane {
        name: name.to_owned(),
        look,
        shares: (0..90).map(|n| ((n * period) % 31) as f64 / 30.0).collect(),
        total: format!("{} %", 10 * period),
        full: "100 %".to_owned(),
    };
    Lanes {
        title: "Where the time went: host1:/data".to_owned(),
        description: "What the sender waited for.".to_owned(),
        seconds: 12.7,
        lanes: vec![
            lane(0, "moving", 1),
            lane(1, "source", 4),
            lane(2, "sink", 7),
        ],
    }
}

fn page() -> Page {
    let mut table = Table::new(
        "Bandwidth, GB/s",
        ["size", "fabricast", "interval", "bare", "interval", "ratio"],
    );
    for point in &figure().lines[0].points {
        let interval = format!("[{}, {}]", short(point.low), short(point.high));
        let size = fabricast_charts::bytes(point.x);
        table.rows.push(vec![
            size,
            short(point.y),
            interval.clone(),
            short(point.y),
            interval,
            "1.01".into(),
        ]);
    }
    Page {
        title: "A page with a title that is long enough to need two lines where it is narrow"
            .to_owned(),
        text: vec!["word ".repeat(60), "a-name-without-a-space".repeat(12)],
        sections: vec![Section {
            heading: "send, depth 16".to_owned(),
            text: vec!["Some text.".to_owned()],
            tables: vec![table.clone()],
            pictures: vec![
                Picture::of(&figure(), table.clone()),
                Picture::of(&tails(), table),
                Picture::of_lanes(&lanes()),
            ],
        }],
    }
}

/// With FABRICAST_WRITE_DOCS=1 the picture is written; else it must be the same.
fn compare(name: &str, drawn: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/pictures")
        .join(name);
    if std::env::var_os("FABRICAST_WRITE_DOCS").is_some() {
        std::fs::write(&path, drawn).expect("the folder of pictures");
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == drawn,
        "{} is not what is drawn now: look at it, and if it is right, run FABRICAST_WRITE_DOCS=1 \
         cargo test -p fabricast-charts --test pictures",
        path.display()
    );
}

#[test]
fn charts_are_drawn_as_they_were() {
    compare(
        "bandwidth.svg",
        &Picture::of(&figure(), Table::default()).file(),
    );
    compare(
        "percentiles.svg",
        &Picture::of(&tails(), Table::default()).file(),
    );
    compare("lanes.svg", &Picture::of_lanes(&lanes()).file());
}

#[test]
fn a_page_fits_its_window_and_can_be_read_in_light_and_dark() {
    browser::look_at(&page().html());
}

#[cfg(feature = "png")]
#[test]
fn a_bitmap_shows_the_chart() {
    use fabricast_charts::png;
    match png::render(&figure().svg(), 2.0) {
        Err(png::PngError::NoFont) => println!("SKIPPED: this machine has no font"),
        png => {
            let png = png.expect("a bitmap");
            assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
            let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("four"));
            assert_eq!((side(16), side(20)), (1280, 840));
            // A ground of one colour would be a few hundred bytes.
            assert!(png.len() > 10_000, "{}", png.len());
        }
    }
}
