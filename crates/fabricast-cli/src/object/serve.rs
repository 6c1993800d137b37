//! `fabricast serve`: a directory of objects, until somebody ends it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::PeerAddr;
use fabricast::object::{
    ClientNetworks, FileStore, ListPage, ListQuery, ObjectEtag, ObjectInfo, ObjectName,
    ObjectServerConfig, ObjectService, ObjectServiceConfig, ObjectStore, ObjectUpload,
    PutCondition, StoreError, StoredObject,
};
use serde_json::json;

use super::args::ServeArgs;
use super::{open_fabric, report};
use crate::failure::{End, Failure};
use crate::interrupt;

/// How often it is looked whether somebody asks for an end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long goodbyes may take.
const GOODBYE: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    check_listen(args)?;
    interrupt::watch()?;
    let in_dir = |error| Failure::file(&args.dir, &error).ends(End::Sink);
    std::fs::create_dir_all(&args.dir).map_err(in_dir)?;
    let store = FileStore::open(&args.dir).map_err(|error| Failure::of(error).ends(End::Sink))?;
    let local = args.listen.socket_addr().map(|addr| addr.ip());
    let fabric = open_fabric(&args.common, local.filter(|ip| !ip.is_unspecified()))?;
    let config = config(args)?;
    let (listen, control) = (args.listen, &fabric);
    let service = match args.read_only {
        true => ObjectService::start(ReadOnly(store), &fabric, listen, control, config)?,
        false => ObjectService::start(store, &fabric, listen, control, config)?,
    };
    let (addr, dir) = (service.local_addr(), args.dir.display().to_string());
    report::line(
        args.common.json,
        format_args!("serving {dir} at fc://{addr}/"),
        json!({"event": "serving", "address": addr.to_string(), "directory": dir}),
    );
    loop {
        std::thread::sleep(LOOK_EVERY);
        if interrupt::asked().is_some() {
            service.close(Instant::now() + GOODBYE);
            return Ok(());
        }
    }
}

/// Nobody serves the whole network without having said so.
fn check_listen(args: &ServeArgs) -> Result<(), Failure> {
    let is_reached = |addr: &PeerAddr| addr.socket_addr().is_none_or(|it| !it.ip().is_loopback());
    if args.anyone || !is_reached(&args.listen) {
        return Ok(());
    }
    let (listen, dir) = (&args.listen, args.dir.display());
    let may = match args.read_only {
        true => "read",
        false => "read, replace and remove",
    };
    Err(Failure::new(format!(
        "whoever reaches {listen} could {may} everything below {dir}, since nobody is asked who \
         they are: add --anyone if that is meant, or listen at a loopback address"
    ))
    .ends(End::Usage))
}

fn config(args: &ServeArgs) -> Result<ObjectServiceConfig, Failure> {
    let config = ObjectServiceConfig::default().workers(args.workers);
    if args.clients.is_empty() {
        return Ok(config);
    }
    let networks: Result<ClientNetworks, _> = args.clients.join(",").parse();
    let wrong = |error| Failure::new(format!("--clients: {error}")).ends(End::Usage);
    let networks = networks.map_err(wrong)?;
    Ok(config.server(ObjectServerConfig::default().clients(networks)))
}

/// A store that nobody changes by this server.
#[derive(Debug)]
struct ReadOnly(FileStore);

impl ObjectStore for ReadOnly {
    fn head(&self, name: &ObjectName) -> Result<ObjectInfo, StoreError> {
        self.0.head(name)
    }

    fn open(&self, name: &ObjectName) -> Result<Arc<dyn StoredObject>, StoreError> {
        self.0.open(name)
    }

    fn begin(
        &self,
        _: &ObjectName,
        _: u64,
        _: &PutCondition,
    ) -> Result<Box<dyn ObjectUpload>, StoreError> {
        Err(StoreError::Denied)
    }

    fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        self.0.list(query)
    }

    fn list_while(
        &self,
        query: &ListQuery,
        is_needed: &dyn Fn() -> bool,
    ) -> Result<ListPage, StoreError> {
        self.0.list_while(query, is_needed)
    }

    fn delete(&self, _: &ObjectName, _: Option<&ObjectEtag>) -> Result<(), StoreError> {
        Err(StoreError::Denied)
    }

    fn may_block(&self) -> bool {
        self.0.may_block()
    }
}
