//! A client of a server, and what it asks without moving bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::Fabric;
use fabricast::object::{ObjectClient, ObjectClientConfig, RemoteConfig, RemoteObjects};
use serde_json::json;

use crate::args::{ClientArgs, ListArgs, NameArgs};
use crate::failure::Failure;
use crate::{local_for, open_fabric, report};

/// A client with its connection.
pub(crate) struct Connected {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) remote: RemoteObjects,
    pub(crate) deadline: Instant,
}

pub(crate) fn connect(args: &ClientArgs) -> Result<Connected, Failure> {
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let fabric = open_fabric(&args.common, local_for(&args.to))?;
    let client = ObjectClient::open(&fabric, ObjectClientConfig::default())?;
    let remote = RemoteObjects::connect(&client, &fabric, &args.to, RemoteConfig::default());
    Ok(Connected {
        remote: remote.map_err(Failure::of)?,
        fabric,
        deadline,
    })
}

pub(crate) fn head(args: &NameArgs) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut connected = connect(&args.client)?;
    let object = connected.remote.head(&args.name, connected.deadline);
    let object = object.map_err(Failure::of)?;
    let json = args.client.common.json;
    report::object(json, "head", &args.name, &object, begin.elapsed());
    Ok(())
}

pub(crate) fn delete(args: &NameArgs) -> Result<(), Failure> {
    let mut connected = connect(&args.client)?;
    let deleted = connected
        .remote
        .delete(&args.name, None, connected.deadline);
    deleted.map_err(Failure::of)?;
    report::line(
        args.client.common.json,
        format_args!("deleted {}", args.name),
        json!({"operation": "delete", "name": args.name}),
    );
    Ok(())
}

pub(crate) fn list(args: &ListArgs) -> Result<(), Failure> {
    let mut connected = connect(&args.client)?;
    for object in connected.remote.list(&args.prefix, connected.deadline) {
        let object = object.map_err(Failure::of)?;
        let name = object.name.to_string();
        report::line(
            args.client.common.json,
            format_args!("{:>14}  {name}", object.size),
            json!({"name": name, "size_bytes": object.size}),
        );
    }
    Ok(())
}
