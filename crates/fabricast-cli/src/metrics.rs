//! `--metrics`: what a command's process counts, at an address or in a file.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fabricast::metrics::MetricsFile;

use crate::failure::{End, Failure};

/// How often a file is written.
const EVERY: Duration = Duration::from_secs(1);

/// Where metrics go.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MetricsArgs {
    /// Serve what is counted to Prometheus, as http://ADDR:PORT/metrics, for as long as this runs
    /// (port 0: a free one, which stderr says); or, if it is no address, keep it in a file of that
    /// name, written every second
    #[arg(long, value_name = "ADDR:PORT|FILE")]
    metrics: Option<PathBuf>,
}

/// Drop it to end it.
#[derive(Debug)]
pub(crate) enum MetricsOutput {
    None,
    #[cfg(feature = "exporter")]
    Exporter(
        #[expect(dead_code, reason = "serves until it is dropped")] fabricast::metrics::Exporter,
    ),
    File(#[expect(dead_code, reason = "writes until it is dropped")] MetricsFile),
}

impl MetricsArgs {
    /// Begins to tell what is counted.
    pub(crate) fn start(&self) -> Result<MetricsOutput, Failure> {
        let Some(given) = &self.metrics else {
            return Ok(MetricsOutput::None);
        };
        match given.to_str().map(str::parse::<SocketAddr>) {
            Some(Ok(addr)) => serve(addr),
            _ => {
                let failed = |error| Failure::file(given, &error).ends(End::Sink);
                let file = MetricsFile::keep(given, EVERY).map_err(failed)?;
                Ok(MetricsOutput::File(file))
            }
        }
    }
}

#[cfg(feature = "exporter")]
fn serve(addr: SocketAddr) -> Result<MetricsOutput, Failure> {
    let failed = |error| Failure::new(format!("--metrics {addr}: {error}")).ends(End::Usage);
    let exporter = fabricast::metrics::Exporter::listen(addr).map_err(failed)?;
    eprintln!("metrics: http://{}/metrics", exporter.local_addr());
    Ok(MetricsOutput::Exporter(exporter))
}

#[cfg(not(feature = "exporter"))]
fn serve(addr: SocketAddr) -> Result<MetricsOutput, Failure> {
    let text = format!(
        "--metrics {addr}: this program was built without the feature exporter; give it the name \
         of a file instead"
    );
    Err(Failure::new(text).ends(End::Usage))
}
