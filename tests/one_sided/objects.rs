//! A service of objects in one process, its clients in others, over each provider that opens here;
//! and clients and services that are killed in the middle of what they do.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::Access;
use fabricast::fabric::EndpointKind;
use fabricast::fabric::{Fabric, PeerAddr};
use fabricast::object::{
    FileStore, ObjectClient, ObjectClientConfig, ObjectMemory, ObjectService, ObjectServiceConfig,
    ObjectStatus, PutCondition, RemoteConfig, RemoteObjects,
};

use crate::common::child::{self, Child};
use crate::common::{self, SOON, pattern, rounds};

/// Bytes of an object.
const OBJECT: usize = (3 << 20) + 17;
/// What one request of a client moves.
const PART: u64 = 256 << 10;

fn open(provider: &str) -> Option<Arc<Fabric>> {
    let builder = Fabric::builder()
        .provider(provider)
        .endpoint_kind(EndpointKind::Rdm);
    let builder = match provider {
        "shm" => builder,
        _ => builder.node(common::node()),
    };
    let opened = builder.open();
    opened
        .map_err(|error| println!("without {provider}: {error}"))
        .ok()
}

fn serve(fabric: &Arc<Fabric>, directory: &Path) -> ObjectService {
    let store = FileStore::open(directory).expect("a directory");
    let listen = match fabric.provider().names {
        Some(_) => PeerAddr::any(),
        None => common::any_port(),
    };
    let config = ObjectServiceConfig::default()
        .piece_bytes(64 << 10)
        .lost_after(Duration::from_secs(3))
        .stall(Duration::from_secs(20));
    ObjectService::start(store, fabric, listen, fabric, config).expect("a service")
}

// ---- the client ---------------------------------------------------------------------------------

/// A client with memory, which has the bytes of an object.
fn client_with_memory(fabric: &Arc<Fabric>, part: u64) -> (ObjectClient, ObjectMemory) {
    let parts = ObjectClientConfig::default().callback_bytes(part);
    let client = ObjectClient::open(fabric, parts).expect("a client");
    let pool = SharedBufferManager::allocate(1, OBJECT).expect("a pool");
    let buffer = pool.try_acquire().expect("one is free");
    let memory = client.register(buffer, Access::all()).expect("memory");
    memory.copy_in(0, &pattern(5, OBJECT)).expect("a buffer");
    (client, memory)
}

/// Its client, memory and connection, as the parent said.
fn connected(argument: &str, part: u64) -> (ObjectMemory, RemoteObjects) {
    let (provider, address) = argument.split_once(' ').expect("two words");
    let fabric = open(provider).expect("the parent opened it");
    let (client, memory) = client_with_memory(&fabric, part);
    let address = address.parse().expect("an address");
    let config = RemoteConfig::default();
    let remote = RemoteObjects::connect(&client, &fabric, &address, config);
    (memory, remote.expect("a connection"))
}

fn by() -> Instant {
    Instant::now() + SOON
}

/// All of it, once.
fn whole_client() {
    let (memory, mut remote) = connected(&child::argument(), PART);
    let all = 0..OBJECT as u64;
    let absent = PutCondition::Absent;
    let put = remote
        .put("a/b", &memory, all.clone(), &absent, by())
        .expect("put");
    assert!(put.is_checked);
    memory.copy_in(0, &vec![0; OBJECT]).expect("a buffer");
    let got = remote.get("a/b", &memory, all, 0, by()).expect("got");
    assert_eq!(
        (got.moved, &got.etag, got.is_checked),
        (OBJECT as u64, &put.etag, true)
    );
    let mut bytes = vec![0; OBJECT];
    memory.copy_out(0, &mut bytes).expect("a buffer");
    assert!(bytes == pattern(5, OBJECT));
    let again = remote
        .put("a/b", &memory, 0..5, &absent, by())
        .expect_err("there is one");
    assert_eq!(again.status(), Some(ObjectStatus::EXISTS));
    let names: Vec<_> = remote
        .list("", by())
        .map(|it| it.expect("an object").name)
        .collect();
    assert_eq!(
        names.iter().map(AsRef::as_ref).collect::<Vec<&str>>(),
        ["a/b"]
    );
    remote
        .delete("a/b", Some(&put.etag), by())
        .expect("deleted");
    child::tell("done");
}

/// Puts until it is killed.
fn endless_client() {
    let (memory, mut remote) = connected(&child::argument(), PART);
    loop {
        let put = remote.put("x", &memory, 0..OBJECT as u64, &PutCondition::Any, by());
        put.expect("put");
        child::tell("put");
    }
}

/// Gets until it is stopped.
fn busy_client() {
    let (memory, mut remote) = connected(&child::argument(), OBJECT as u64);
    let all = 0..OBJECT as u64;
    remote
        .put("y", &memory, all.clone(), &PutCondition::Any, by())
        .expect("put");
    loop {
        remote.get("y", &memory, all.clone(), 0, by()).expect("got");
        child::tell("got");
    }
}

// ---- the tests ----------------------------------------------------------------------------------

fn fabrics() -> Vec<Arc<Fabric>> {
    let named = common::provider::asked_or(EndpointKind::Rdm, &["tcp", "net", "shm"]);
    let there: Vec<_> = named.iter().filter_map(|name| open(name)).collect();
    if there.is_empty() {
        println!("SKIPPED: none of {named:?} opens");
    }
    there
}

/// Does this with a service of each provider, its directory, and what its clients are told.
fn with_each_service(test: impl Fn(ObjectService, &Path, &str)) {
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        println!("{provider}");
        let directory = tempfile::tempdir().expect("a directory");
        let service = serve(&fabric, directory.path());
        let argument = format!("{provider} {}", service.local_addr());
        test(service, directory.path(), &argument);
    }
}

/// A client in another process, to its end.
fn do_everything(argument: &str) {
    let this = "objects::a_client_in_another_process_does_everything";
    let mut client = Child::start(this, "client", argument);
    client.expect("done", SOON);
    client.finish(SOON);
}

#[test]
fn a_client_in_another_process_does_everything() {
    if child::role().is_some() {
        return whole_client();
    }
    with_each_service(|service, directory, argument| {
        do_everything(argument);
        service.close(by());
        assert_eq!(entries(directory), Vec::<String>::new());
    });
}

#[test]
fn a_client_that_is_killed_in_the_middle_of_a_put_leaves_nothing() {
    if child::role().is_some() {
        return endless_client();
    }
    let this = "objects::a_client_that_is_killed_in_the_middle_of_a_put_leaves_nothing";
    with_each_service(|_service, directory, argument| {
        for round in 0..rounds(3, 100) {
            let mut client = Child::start(this, "client", argument);
            client.expect("put", SOON);
            std::thread::sleep(Duration::from_millis(u64::from(7 * (round % 5))));
            drop(client);
            let until = by();
            while entries(directory) != ["x"] {
                assert!(Instant::now() < until, "{:?}", entries(directory));
                std::thread::sleep(Duration::from_millis(5));
            }
            // What is there is whole.
            let there = std::fs::read(directory.join("x")).expect("an object");
            assert!(there == pattern(5, OBJECT));
        }
        std::fs::remove_file(directory.join("x")).expect("it is there");
        do_everything(argument);
    });
}

#[test]
fn eight_clients_that_are_stopped_cost_little_and_hold_up_nobody() {
    match child::role().as_deref() {
        Some("service") => return measured_service(),
        Some(_) => return busy_client(),
        None => {}
    }
    let this = "objects::eight_clients_that_are_stopped_cost_little_and_hold_up_nobody";
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        let directory = tempfile::tempdir().expect("a directory");
        // In a process of its own: other tests of this one take time, too.
        let path = directory.path().display();
        let mut service = Child::start(this, "service", format!("{provider} {path}"));
        let argument = format!("{provider} {}", service.expect("at", SOON));
        // One after the other: a token is an address over shm, and a process takes 256 of them.
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let mut client = Child::start(this, "client", &argument);
                client.expect("got", SOON);
                client.stop();
                client
            })
            .collect();
        let mut used = || {
            service.say("cpu");
            let ns = service.expect("cpu", SOON).parse().expect("a number");
            (Duration::from_nanos(ns), Instant::now())
        };
        let (cpu, begin) = used();
        std::thread::sleep(Duration::from_millis(700));
        let (after, end) = used();
        let share = (after - cpu).as_secs_f64() / (end - begin).as_secs_f64();
        println!("{provider}: eight stopped clients cost {share:.3} of a core");
        assert!(share < 0.5, "{provider}: {share}");
        std::fs::remove_file(directory.path().join("y")).expect("it is there");
        do_everything(&argument);
        drop(clients);
        service.say("end");
        service.finish(SOON);
    }
}

/// Puts an object, and gets it until the service is gone: how long after its kill that was told.
fn get_until_killed(memory: &ObjectMemory, mut remote: RemoteObjects, service: Child) -> Duration {
    let all = 0..OBJECT as u64;
    let put = remote.put("z", memory, all.clone(), &PutCondition::Any, by());
    put.expect("put");
    let (got, has_got) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let gets = scope.spawn(move || {
            loop {
                match remote.get("z", memory, all.clone(), 0, by()) {
                    Ok(_) => got.send(()).expect("somebody listens"),
                    Err(_) => return Instant::now(),
                }
            }
        });
        has_got.recv_timeout(SOON).expect("one get at least");
        let killed = Instant::now();
        service.kill();
        let told = gets.join().expect("no panic");
        told.saturating_duration_since(killed)
    })
}

/// One client and its memory outlive services that are killed while they write to it: each end is
/// told in time, nothing is written behind it, and the memory comes back.
#[test]
fn services_that_are_killed_in_the_middle_of_a_get_write_nothing_later() {
    if child::role().is_some() {
        return measured_service();
    }
    let this = "objects::services_that_are_killed_in_the_middle_of_a_get_write_nothing_later";
    for fabric in fabrics() {
        let provider = fabric.provider().name;
        let (client, memory) = client_with_memory(&fabric, PART);
        let mut longest = Duration::ZERO;
        for round in 0..rounds(2, 100) {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().display();
            let mut service = Child::start(this, "service", format!("{provider} {path}"));
            let address = service.expect("at", SOON).parse().expect("an address");
            let config = RemoteConfig::default().lost_after(Duration::from_secs(2));
            let remote = RemoteObjects::connect(&client, &fabric, &address, config);
            let seed = u64::from(round) + 7;
            memory.copy_in(0, &pattern(seed, OBJECT)).expect("a buffer");
            let told = get_until_killed(&memory, remote.expect("a connection"), service);
            longest = longest.max(told);
            assert!(told < SOON, "{provider}: told after {told:?}");
            // What is written here now stays: no write of the killed one comes behind it.
            memory
                .copy_in(0, &pattern(seed + 1, OBJECT))
                .expect("a buffer");
            std::thread::sleep(Duration::from_millis(20));
            let mut bytes = vec![0; OBJECT];
            memory.copy_out(0, &mut bytes).expect("a buffer");
            assert!(
                bytes == pattern(seed + 1, OBJECT),
                "{provider}: a late write"
            );
        }
        println!("{provider}: a killed service was told after {longest:?} at most");
        let back = memory.release(by()).expect("nobody reaches it");
        assert_eq!(back.len(), OBJECT);
        drop(client);
    }
}

/// A service that says what its process has used, when it is asked.
fn measured_service() {
    let argument = child::argument();
    let (provider, directory) = argument.split_once(' ').expect("two words");
    let fabric = open(provider).expect("the parent opened it");
    let service = serve(&fabric, Path::new(directory));
    child::tell(format!("at {}", service.local_addr()));
    while child::hear().as_deref() == Some("cpu") {
        child::tell(format!("cpu {}", cpu_time().as_nanos()));
    }
}

/// What this process has used, in all threads.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}
