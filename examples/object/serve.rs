//! `object serve`: a directory, until the process is ended.

use std::time::Duration;

use fabricast::object::{
    FileStore, ObjectService, ObjectServiceConfig, TelemetryFormat, TelemetryWriter,
    TelemetryWriterConfig,
};
use serde_json::json;

use crate::args::ServeArgs;
use crate::failure::Failure;
use crate::parent::end_with_parent;
use crate::{open_fabric, report};

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    end_with_parent(args.child)?;
    std::fs::create_dir_all(&args.dir).map_err(|error| Failure::file(&args.dir, &error))?;
    let store = FileStore::open(&args.dir).map_err(Failure::of)?;
    let local = args.listen.socket_addr().map(|addr| addr.ip());
    let fabric = open_fabric(&args.common, local)?;
    let config = ObjectServiceConfig::default().workers(args.workers);
    let service = ObjectService::start(store, &fabric, args.listen, &fabric, config)?;
    let _metrics = args
        .metrics
        .as_ref()
        .map(|path| {
            let config = TelemetryWriterConfig::default()
                .format(TelemetryFormat::Prometheus)
                .every(Duration::from_secs(1));
            TelemetryWriter::replace(path, config).map_err(Failure::of)
        })
        .transpose()?;
    let (addr, dir) = (service.local_addr(), args.dir.display().to_string());
    report::line(
        args.common.json,
        format_args!("serving {dir} at {addr}"),
        json!({"event": "serving", "address": addr.to_string(), "directory": dir}),
    );
    loop {
        std::thread::park();
    }
}
