//! The server: connections, and what becomes of them.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fabricast::object::{FileStore, ObjectServer, ObjectServerConfig};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

use crate::connections::{Connection, Connections};
use crate::mover::Mover;
use crate::object_body::BODY_PIECE;
use crate::pace::{PacedBody, PacedStream};
use crate::pieces::Pieces;
use crate::service::Service;
use crate::{Failure, ServeArgs, say};

/// Bytes of a head, and of what came of a body and was not looked at.
const READ_AHEAD: usize = 64 << 10;

/// A client that is given up within a request has so long to hear why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a client is told that there is no place for.
const NO_PLACE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\
    Content-Type: application/xml\r\n\r\n\
    <Error><Code>SlowDown</Code><Message>there are as many connections as may be</Message></Error>";

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let fabric = args.rdma.open()?;
    let server = ObjectServer::open(&fabric, ObjectServerConfig::default())?;
    let service = Arc::new(Service {
        store: Arc::new(FileStore::open(&args.directory)?),
        pieces: Pieces::new(server.domain(), Mover::start(&server)?)?,
        server,
        clients: args.clients.clone(),
        bucket: args.bucket.clone(),
        stall: Duration::from_secs(args.stall),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen).await?;
        say(format_args!(
            "listening on http://{}",
            listener.local_addr()?
        ));
        let connections = Arc::new(Connections::default());
        loop {
            let Ok((stream, address)) = listener.accept().await else {
                // The client went away again, or descriptors are used up for now.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let (service, connections) = (Arc::clone(&service), Arc::clone(&connections));
            tokio::spawn(async move {
                match connections.place(address.ip()).await {
                    Some(connection) => serve(service, stream, connection).await,
                    // It is told so if that is possible at once.
                    None => drop(stream.try_write(NO_PLACE)),
                }
            });
        }
    })
}

/// Serves a connection until its client goes away, stalls, or has to make room for another one.
async fn serve(service: Arc<Service>, stream: TcpStream, connection: Connection) {
    let (connection, limit) = (Arc::new(connection), service.stall + LAST_WORDS);
    // Otherwise the kernel takes up to 4 MiB of a reply that nobody reads, and others wait
    // meanwhile. A kernel that refuses the option serves as before.
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(BODY_PIECE as u32);
    let pace = Arc::clone(&connection.pace);
    let client = Arc::clone(&connection);
    let answer = service_fn(move |request| {
        let (service, client) = (Arc::clone(&service), Arc::clone(&client));
        async move {
            let request_is_there = client.pace.answering();
            let reply = service.answer(request, &client).await;
            Ok::<_, Infallible>(reply.map(|body| PacedBody {
                body,
                _request: request_is_there,
            }))
        }
    });
    let stream = TokioIo::new(PacedStream {
        stream,
        pace: Arc::clone(&pace),
    });
    let mut builder = http1::Builder::new();
    // How long a head may take is a matter of the pace.
    builder.header_read_timeout(None).max_buf_size(READ_AHEAD);
    let mut served = pin!(builder.serve_connection(stream, answer));
    let mut exceeded = pin!(pace.exceeds(limit));
    let mut given_up = pin!(connection.given_up());
    // A client that goes away is its own matter.
    poll_fn(|context| {
        let is_over = served.as_mut().poll(context).is_ready()
            || exceeded.as_mut().poll(context).is_ready()
            || given_up.as_mut().poll(context).is_ready();
        if is_over {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
