//! fio, where it is installed, with the same engine, depth, registered file and buffers.

use std::process::Command;

use crate::Failure;
use crate::case::Bench;
use crate::plain::RANDOM_BYTES;

/// Why it can't be run here.
pub(crate) fn missing() -> Option<String> {
    match Command::new("fio").arg("--version").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("fio --version: {}", output.status)),
        Err(error) => Some(format!("fio (Debian: fio): {error}")),
    }
}

/// What it measured: reads a second, and its processor seconds for all of them.
pub(crate) fn random(bench: &Bench) -> Result<(f64, f64), Failure> {
    let output = Command::new("fio")
        .args([
            "--name=random",
            "--ioengine=io_uring",
            "--rw=randread",
            "--direct=1",
        ])
        .args([
            "--fixedbufs",
            "--registerfiles",
            "--time_based",
            "--norandommap",
        ])
        .args(["--randrepeat=0", "--invalidate=1", "--output-format=json"])
        .arg(format!("--bs={RANDOM_BYTES}"))
        .arg(format!("--iodepth={}", bench.depth))
        .arg(format!(
            "--runtime={}ms",
            (bench.seconds * 1e3).max(1.0) as u64
        ))
        .arg(format!("--size={}", bench.size))
        .arg(format!("--filename={}", bench.path.display()))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("fio: {}", error.lines().next().unwrap_or("failed")).into());
    }
    // The first number of each name is that of the only job's reads; options of the same names are
    // text.
    let number = |name: &str| -> Option<f64> {
        let name = format!("\"{name}\" : ");
        let values = text.split(&name).skip(1);
        let mut numbers =
            values.filter_map(|behind| behind.split([',', '\n', '}']).next()?.trim().parse().ok());
        numbers.next()
    };
    let iops = number("iops").ok_or("fio printed no iops")?;
    let runtime_s = number("runtime").ok_or("fio printed no runtime")? / 1e3;
    let cpu = number("usr_cpu").unwrap_or(f64::NAN) + number("sys_cpu").unwrap_or(f64::NAN);
    Ok((iops, cpu / 100.0 * runtime_s))
}
