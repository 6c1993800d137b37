//! A page in headless Chromium: how wide it is, how its text stands out, and that it is not blank.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the page says of itself once it is laid out, as the title of the document.
const MEASURE: &str = r#"<script>
addEventListener("load", () => {
  const light = (text) => {
    const parts = text.match(/[\d.]+/g).slice(0, 3).map((part) => {
      const value = part / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05;
  };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  let least = 99, letters = 99;
  for (const element of document.querySelectorAll("h1, h2, p, th, td, caption, text")) {
    const style = getComputedStyle(element);
    const ink = light(element.matches("text") ? style.fill : style.color);
    least = Math.min(least, Math.max(ink, ground) / Math.min(ink, ground));
    letters = Math.min(letters, element.getBoundingClientRect().height);
  }
  const root = document.documentElement;
  const all = [...document.querySelectorAll("svg.chart")];
  const charts = all.map((it) => it.getBoundingClientRect());
  document.title = "measured " + JSON.stringify({
    window: innerWidth, scroll: root.scrollWidth, client: root.clientWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches, contrast: least, letters,
    charts: charts.length, narrowest: Math.min(...charts.map((it) => it.width)),
    rows: new Set(charts.map((it) => Math.round(it.y))).size,
    ground: getComputedStyle(document.body).backgroundColor,
  });
});
</script>"#;

/// Where Chromium is, if it is here.
fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "chrome-headless-shell",
    ];
    let all = std::env::split_paths(&path);
    let all = all.flat_map(|dir| names.map(|name| dir.join(name)));
    all.into_iter().find(|program| program.is_file())
}

/// Runs it for a minute at most, and gives what it prints.
fn run(program: &Path, home: &Path, dark: bool, arguments: &[String]) -> Option<String> {
    let scheme = if dark { 0 } else { 1 };
    let out = home.join("stdout");
    let mut child = Command::new(program)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .args([
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
        ])
        .arg(format!(
            "--user-data-dir={}",
            home.join("profile").display()
        ))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&out).expect("a temporary directory"))
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match child.try_wait() {
            Ok(Some(_)) => return std::fs::read_to_string(&out).ok(),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

fn number(measured: &str, key: &str) -> f64 {
    let begin = measured
        .find(&format!("\"{key}\":"))
        .unwrap_or_else(|| panic!("{key}: {measured}"));
    let value = &measured[begin + key.len() + 3..];
    let end = value.find([',', '}']).unwrap_or(value.len());
    value[..end]
        .parse()
        .unwrap_or_else(|_| panic!("{key}: {measured}"))
}

/// Looks at a page in light and dark, wide and narrow. With FABRICAST_SCREENSHOTS=DIR pictures of
/// it are left there.
pub(crate) fn look_at(html: &str) {
    let Some(program) = chromium() else {
        return println!("SKIPPED: no Chromium on this machine (Debian: chromium)");
    };
    let home = tempfile::tempdir().expect("a temporary directory");
    // The page itself forbids scripts; the copy that is measured has one.
    let (head, body) = html.split_once("<meta http-equiv").expect("a policy");
    let (_, body) = body.split_once(">\n").expect("its end");
    let page = home.path().join("page.html");
    std::fs::write(&page, format!("{head}{body}{MEASURE}")).expect("a page");
    // A window is no narrower than 500 pixels; a frame is.
    let framed = format!("{head}{body}{MEASURE}")
        .replace('&', "&amp;")
        .replace('"', "&quot;");
    let narrow = home.path().join("narrow.html");
    let frame = format!(
        "<!doctype html><meta name=color-scheme content=\"light dark\"><body style=margin:0>\
         <iframe style=\"border:0;width:400px;height:3600px\" srcdoc=\"{framed}\"></iframe>\
         <script>addEventListener(\"load\", () => setTimeout(() => \
         document.title = frames[0].document.title, 100))</script>"
    );
    std::fs::write(&narrow, frame).expect("a page");
    for (width, file) in [(1280, &page), (400, &narrow)] {
        for dark in [false, true] {
            let url = format!("file://{}", file.display());
            let common = [
                format!("--window-size={width},3600"),
                "--virtual-time-budget=5000".into(),
            ];
            let arguments = [&common[..], &["--dump-dom".to_owned(), url.clone()]].concat();
            let Some(dom) = run(&program, home.path(), dark, &arguments) else {
                return println!("SKIPPED: Chromium does not run on this machine");
            };
            let measured = dom
                .split_once("<title>measured ")
                .and_then(|it| it.1.split_once("</title>"));
            let measured = measured
                .unwrap_or_else(|| panic!("nothing measured: {dom:.2000}"))
                .0;
            println!("{width} {dark}: {measured}");
            assert_eq!(number(measured, "window"), f64::from(width), "{measured}");
            assert!(
                number(measured, "scroll") <= number(measured, "client"),
                "{measured}"
            );
            assert!(number(measured, "contrast") >= 4.5, "{measured}");
            assert!(number(measured, "charts") >= 1.0, "{measured}");
            assert!(number(measured, "narrowest") >= 360.0, "{measured}");
            assert!(number(measured, "letters") >= 8.0, "{measured}");
            assert!(measured.contains(&format!("\"dark\":{dark}")), "{measured}");
            let shot = home.path().join("shot.png");
            let arguments = [
                &common[..],
                &[format!("--screenshot={}", shot.display()), url],
            ]
            .concat();
            run(&program, home.path(), dark, &arguments);
            let png = std::fs::read(&shot).expect("a screenshot");
            // One colour would be compressed to a few kilobytes.
            assert!(png.len() > 30_000, "blank: {} bytes", png.len());
            if let Some(dir) = std::env::var_os("FABRICAST_SCREENSHOTS") {
                let scheme = if dark { "dark" } else { "light" };
                let name = Path::new(&dir).join(format!("{width}-{scheme}.png"));
                std::fs::copy(&shot, name).expect("the directory for screenshots");
            }
        }
    }
}
