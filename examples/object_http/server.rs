//! The server: requests over HTTP, bytes by RDMA or in bodies.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fabricast::object::{
    FileStore, ObjectInfo, ObjectName, ObjectServer, ObjectServerConfig, ObjectStore, RdmaToken,
    StoreError, StoredObject,
};
use http_body_util::BodyExt;
use http_body_util::channel::Channel;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderValue, LAST_MODIFIED,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::list::{self, Listing};
use crate::mover::Mover;
use crate::pieces::{NotDone, Pieces, SummedUpload, cut};
use crate::reply::{self, Reply};
use crate::request::{self, Asked, Place, REPLY, TRANSFERRED};
use crate::{Failure, ServeArgs, say};

/// A body of which nothing comes for so long is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// Connections at once; more wait.
const CONNECTIONS: usize = 256;

/// What all requests share.
struct Service {
    store: Arc<dyn ObjectStore>,
    pieces: Pieces,
    bucket: String,
}

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let fabric = args.rdma.open()?;
    let server = ObjectServer::open(&fabric, ObjectServerConfig::default())?;
    let service = Arc::new(Service {
        store: Arc::new(FileStore::open(&args.directory)?),
        pieces: Pieces::new(server.domain(), Mover::start(&server)?)?,
        bucket: args.bucket.clone(),
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
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let place = Arc::clone(&free).acquire_owned().await?;
            let Ok((stream, _)) = listener.accept().await else {
                // The client went away again, or descriptors are used up for now.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let serving = serve(Arc::clone(&service), TokioIo::new(stream));
            tokio::spawn(async move {
                serving.await;
                drop(place);
            });
        }
    })
}

async fn serve(service: Arc<Service>, stream: TokioIo<tokio::net::TcpStream>) {
    let answer = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(service.answer(request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new());
    // A client that goes away is its own matter.
    let _ = builder.serve_connection(stream, answer).await;
}

impl Service {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let place = Place::of(request.uri());
        let query = request::query(request.uri());
        let (Some(place), Some(query)) = (place, query) else {
            let message = "the path or the query is no UTF-8 text";
            return reply::error(StatusCode::BAD_REQUEST, "InvalidURI", message);
        };
        match place {
            Place::Bucket(bucket) | Place::Object(bucket, _) if bucket != self.bucket => {
                let message = format!("the bucket here is {:?}", self.bucket);
                reply::error(StatusCode::NOT_FOUND, "NoSuchBucket", &message)
            }
            Place::Service => self.buckets(request.method()),
            Place::Bucket(_) => self.bucket(request.method(), query).await,
            Place::Object(_, name) => match ObjectName::new(&name) {
                Ok(name) if query.iter().all(|(field, _)| field == "x-id") => {
                    self.object(request, name).await
                }
                Ok(_) => not_here("parts of uploads, tags, rights and versions are not kept here"),
                Err(error) => reply::store_error(&error.into()),
            },
        }
    }

    fn buckets(&self, method: &Method) -> Reply {
        if method != Method::GET {
            return not_here("buckets are neither made nor deleted here");
        }
        let (bucket, made) = (
            reply::escape(&self.bucket),
            list::iso(SystemTime::UNIX_EPOCH),
        );
        let text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListAllMyBucketsResult><Buckets><Bucket>\
             <Name>{bucket}</Name><CreationDate>{made}</CreationDate></Bucket></Buckets>\
             </ListAllMyBucketsResult>"
        );
        reply::xml(StatusCode::OK, text)
    }

    async fn bucket(&self, method: &Method, query: Vec<(String, String)>) -> Reply {
        let has = |field: &str| query.iter().any(|(name, _)| name == field);
        match *method {
            Method::HEAD => reply::status(StatusCode::OK),
            Method::GET if has("location") => {
                reply::xml(StatusCode::OK, "<LocationConstraint/>".to_owned())
            }
            Method::GET if has("list-type") || query.is_empty() => {
                let listing = Listing::of(&query);
                let bucket = self.bucket.clone();
                let listed = self
                    .blocking(move |store| list::list(store, &bucket, &listing))
                    .await;
                match listed {
                    Ok(text) => reply::xml(StatusCode::OK, text),
                    Err(error) => reply::store_error(&error),
                }
            }
            _ => not_here("a bucket is listed here (list-type=2), and no more"),
        }
    }

    async fn object(&self, request: Request<Incoming>, name: ObjectName) -> Reply {
        match *request.method() {
            Method::HEAD => match self.blocking(move |store| store.head(&name)).await {
                Ok(info) => head(&info),
                Err(error) => reply::store_error(&error),
            },
            Method::GET => self.get(request.headers(), name).await,
            Method::PUT => match self.put(request, name).await {
                Ok(reply) => reply,
                Err(why) => reply::not_done(&why),
            },
            Method::DELETE => match self.blocking(move |store| store.delete(&name, None)).await {
                Ok(()) | Err(StoreError::NotFound) => reply::status(StatusCode::NO_CONTENT),
                Err(error) => reply::store_error(&error),
            },
            _ => not_here("objects are got, put and deleted here"),
        }
    }

    /// What may wait for a device, on a thread that may wait.
    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn ObjectStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || call(&*store)).await;
        done.unwrap_or_else(|error| Err(StoreError::Failed(error.to_string())))
    }

    async fn get(&self, headers: &HeaderMap, name: ObjectName) -> Reply {
        let object = match self.blocking(move |store| store.open(&name)).await {
            Ok(object) => object,
            Err(error) => return reply::store_error(&error),
        };
        let size = object.info().size;
        let (status, range) = match request::range(headers, size) {
            Asked::All => (StatusCode::OK, 0..size),
            Asked::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
            Asked::Nothing => return unsatisfiable(size),
        };
        let mut reply = match request::token(headers) {
            None => self.in_band(Arc::clone(&object), range.clone()),
            Some(token) => match self.by_token(&object, range.clone(), token).await {
                Ok(()) => by_rdma(status, range.end - range.start),
                Err(NotDone::Declined(_)) => {
                    let mut reply = self.in_band(Arc::clone(&object), range.clone());
                    reply.headers_mut().insert(REPLY, HeaderValue::from(501));
                    reply
                }
                Err(why) => return reply::not_done(&why),
            },
        };
        *reply.status_mut() = status;
        describe(&mut reply, object.info());
        if status == StatusCode::PARTIAL_CONTENT {
            let text = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            set(&mut reply, CONTENT_RANGE, &text);
        }
        reply
    }

    /// Writes a range into the client's window.
    async fn by_token(
        &self,
        object: &Arc<dyn StoredObject>,
        range: Range<u64>,
        token: Result<RdmaToken, fabricast::object::TokenError>,
    ) -> Result<(), NotDone> {
        let token = token.map_err(|error| NotDone::Declined(error.to_string()))?;
        if range.end - range.start > token.len() {
            let reason = "the token's window is shorter than what is asked for";
            return Err(NotDone::Declined(reason.to_owned()));
        }
        self.pieces.push(object, range, &token).await
    }

    /// The bytes as a body, which is made as fast as the client reads it.
    fn in_band(&self, object: Arc<dyn StoredObject>, range: Range<u64>) -> Reply {
        let (mut pipe, body) = Channel::<Bytes, Failure>::new(1);
        let (pieces, len) = (self.pieces.clone(), range.end - range.start);
        tokio::spawn(async move {
            for (at, len) in cut(range) {
                match pieces.load(&*object, at, len).await {
                    Ok((buffer, permit)) => {
                        let bytes = Bytes::copy_from_slice(&buffer);
                        // A client that reads slowly has no buffer of others'.
                        drop((buffer, permit));
                        if pipe.send_data(bytes).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => return pipe.abort(error.into()),
                }
            }
        });
        let mut reply = Reply::new(body.boxed());
        set(&mut reply, CONTENT_LENGTH, &len.to_string());
        reply
    }

    async fn put(&self, request: Request<Incoming>, name: ObjectName) -> Result<Reply, NotDone> {
        let headers = request.headers();
        let Some(condition) = request::condition(headers) else {
            return Ok(not_here(
                "conditions here: If-None-Match: *, or If-Match: with one etag",
            ));
        };
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_coded = text("x-amz-content-sha256").is_some_and(|sum| sum.starts_with("STREAMING"))
            || text("content-encoding").is_some_and(|coding| coding.contains("aws-chunked"));
        if is_coded || text("x-amz-copy-source").is_some() {
            return Ok(not_here(
                "neither copies nor bodies in signed chunks are taken here",
            ));
        }
        let token = request::token(headers);
        let length = text("content-length").and_then(|length| length.parse::<u64>().ok());
        let size = match (&token, length) {
            (Some(Ok(token)), _) => token.len(),
            (Some(Err(error)), _) => return Ok(declined(&error.to_string())),
            (None, Some(length)) => length,
            (None, None) => {
                let message = "Content-Length is missing";
                let status = StatusCode::LENGTH_REQUIRED;
                return Ok(reply::error(status, "MissingContentLength", message));
            }
        };
        let begun = self.blocking(move |store| store.begin(&name, size, &condition));
        let mut upload = SummedUpload::new(begun.await?);
        match &token {
            Some(Ok(token)) => match self.pieces.pull(&mut upload, token).await {
                Err(NotDone::Declined(reason)) => return Ok(declined(&reason)),
                pulled => pulled?,
            },
            _ => {
                self.read_body(request.into_body(), &mut upload, size)
                    .await?
            }
        }
        let info = self.blocking(move |_| upload.commit()).await?;
        let mut reply = match token {
            Some(_) => by_rdma(StatusCode::OK, size),
            None => reply::status(StatusCode::OK),
        };
        reply::set_etag(&mut reply, &info.etag);
        Ok(reply)
    }

    /// Writes a body of so many bytes, as it comes.
    async fn read_body(
        &self,
        mut body: Incoming,
        upload: &mut SummedUpload,
        size: u64,
    ) -> Result<(), NotDone> {
        let mut rest = Bytes::new();
        while upload.done() < size {
            let len = (size - upload.done()).min(crate::pieces::PIECE as u64) as usize;
            let mut slot = self.pieces.slot().await;
            let mut filled = 0;
            while filled < len {
                if rest.is_empty() {
                    rest = next_data(&mut body).await?;
                }
                let part = rest.split_to(rest.len().min(len - filled));
                slot.bytes()[filled..filled + part.len()].copy_from_slice(&part);
                filled += part.len();
            }
            upload.write(slot, len).await?;
        }
        Ok(())
    }
}

async fn next_data(body: &mut Incoming) -> Result<Bytes, NotDone> {
    let frame = tokio::time::timeout(SILENCE, body.frame()).await;
    match frame.map_err(|_| NotDone::Body(format!("nothing came for {SILENCE:?}")))? {
        Some(Ok(frame)) => Ok(frame.into_data().unwrap_or_default()),
        Some(Err(error)) => Err(NotDone::Body(error.to_string())),
        None => Err(NotDone::Body("the body ended early".to_owned())),
    }
}

fn set(reply: &mut Reply, name: hyper::header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
}

fn not_here(message: &str) -> Reply {
    reply::error(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
}

/// The bytes are to come in the body: the client asks again.
fn declined(reason: &str) -> Reply {
    let mut reply = not_here(reason);
    reply.headers_mut().insert(REPLY, HeaderValue::from(501));
    reply
}

/// The bytes went by RDMA; the body is empty.
fn by_rdma(status: StatusCode, bytes: u64) -> Reply {
    let mut reply = reply::status(status);
    let headers = reply.headers_mut();
    headers.insert(REPLY, HeaderValue::from(status.as_u16()));
    headers.insert(TRANSFERRED, HeaderValue::from(bytes));
    reply
}

fn unsatisfiable(size: u64) -> Reply {
    let message = format!("the object has {size} bytes");
    let mut reply = reply::error(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange", &message);
    set(&mut reply, CONTENT_RANGE, &format!("bytes */{size}"));
    reply
}

fn head(info: &ObjectInfo) -> Reply {
    let mut reply = reply::status(StatusCode::OK);
    describe(&mut reply, info);
    set(&mut reply, CONTENT_LENGTH, &info.size.to_string());
    reply
}

fn describe(reply: &mut Reply, info: &ObjectInfo) {
    reply::set_etag(reply, &info.etag);
    set(reply, ACCEPT_RANGES, "bytes");
    if let Some(modified) = info.modified {
        set(reply, LAST_MODIFIED, &list::http_date(modified));
    }
}
