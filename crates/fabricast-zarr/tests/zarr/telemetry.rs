//! What the metrics layer of `tracing-opentelemetry` makes of the events of object transfers: the
//! same numbers as the library's own report. It stands here since this package has those crates
//! and an object service; no example is built with them.

use std::time::Duration;

use fabricast::object::{
    ObjectOperation, ObjectServerConfig, ObjectServiceConfig, OperationStats, TelemetryReport,
};
use fabricast_zarr::ObjectZarrOptions;
use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use tracing_opentelemetry::MetricsLayer;
use tracing_subscriber::layer::SubscriberExt as _;
use zarrs_storage::{ReadableStorageTraits, WritableStorageTraits};

use super::key;
use super::objects::served_with;

/// No other server of this process is called so.
const NAME: &str = "told to OpenTelemetry";

/// Of the points of our server: those of one operation.
fn is_of(operation: &str, mut attributes: impl Iterator<Item = KeyValue>) -> bool {
    let wanted = [
        ("name", NAME),
        ("operation", operation),
        ("side", "server"),
        ("outcome", "done"),
    ];
    let mut found = 0;
    attributes.all(|pair| {
        let about = wanted.iter().find(|(name, _)| pair.key.as_str() == *name);
        found += usize::from(about.is_some());
        about.is_none_or(|(_, value)| pair.value.as_str() == *value)
    }) && found == wanted.len()
}

/// A monotonic counter of ours.
fn counted(metric: &Metric, operation: &str) -> u64 {
    let AggregatedMetrics::U64(MetricData::Sum(sum)) = metric.data() else {
        panic!("{} is no counter of integers", metric.name());
    };
    assert!(sum.is_monotonic(), "{}", metric.name());
    let points = sum.data_points();
    let ours = points.filter(|point| is_of(operation, point.attributes().cloned()));
    ours.map(|point| point.value()).sum()
}

/// How many values a histogram of ours has, and their sum.
fn recorded(metric: &Metric, operation: &str) -> (u64, f64) {
    let AggregatedMetrics::F64(MetricData::Histogram(histogram)) = metric.data() else {
        panic!("{} is no histogram of seconds", metric.name());
    };
    let points = histogram.data_points();
    let ours = points.filter(|point| is_of(operation, point.attributes().cloned()));
    ours.fold((0, 0.0), |(count, sum), point| {
        (count + point.count(), sum + point.sum())
    })
}

/// What the library itself has counted.
fn reported(operation: ObjectOperation) -> OperationStats {
    let report = TelemetryReport::of_process();
    let ours = report.entries().iter().find(|entry| &*entry.name == NAME);
    let ours = ours.expect("the service stands");
    ours.stats.operation(operation).clone()
}

#[test]
fn opentelemetry_counts_what_the_report_counts() {
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone());
    let reader = reader.with_interval(Duration::from_secs(3600)).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    let layer = MetricsLayer::new(provider.clone());
    // Of the process: transfers of a service end on threads of its own. No other test has one.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();

    let server = ObjectServerConfig::default().name(NAME);
    let Some(served) = served_with(ObjectServiceConfig::default().server(server)) else {
        return;
    };
    let store = served.store(ObjectZarrOptions::default());
    store.set(&key("c/0"), vec![7; 5000].into()).unwrap();
    store.set(&key("c/1"), vec![8; 300].into()).unwrap();
    assert_eq!(store.get(&key("c/0")).unwrap().unwrap().len(), 5000);

    provider.force_flush().unwrap();
    let exported = exporter.get_finished_metrics().unwrap();
    let metrics = exported
        .iter()
        .flat_map(|resource| resource.scope_metrics());
    let metrics: Vec<&Metric> = metrics.flat_map(|scope| scope.metrics()).collect();
    let named = |name| {
        let is_it = |metric: &&&Metric| metric.name() == name;
        let found = metrics.iter().find(is_it);
        found.unwrap_or_else(|| panic!("no metric {name}: {metrics:?}"))
    };
    for (operation, ours, bytes) in [
        ("put", reported(ObjectOperation::Put), 5300),
        ("get", reported(ObjectOperation::Get), 5000),
    ] {
        assert_eq!(ours.bytes, bytes, "{operation}");
        let transfers = counted(named("fabricast_object_transfers"), operation);
        assert_eq!((transfers, ours.done > 0), (ours.done, true), "{operation}");
        assert_eq!(counted(named("fabricast_object_bytes"), operation), bytes);
        let seconds = named("fabricast_object_transfer_seconds");
        let (count, sum) = recorded(seconds, operation);
        assert_eq!(count, ours.done, "{operation}");
        assert!(sum > 0.0, "{operation}");
    }
    provider.shutdown().unwrap();
}
