//! `Service`: what a request is answered with, by RDMA or in bodies.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fabricast::object::{
    ClientNetworks, ObjectInfo, ObjectName, ObjectServer, ObjectStore, PutCondition, RdmaToken,
    StoreError, StoredObject, TokenError,
};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED,
};
use hyper::{Method, Request, StatusCode};

use crate::checks::Checks;
use crate::conditions::{self, Verdict};
use crate::connections::Connection;
use crate::dates;
use crate::list::{self, Listing};
use crate::object_body::{BODY_PIECE, ObjectBody};
use crate::pieces::{NotDone, Pieces, SummedUpload};
use crate::reply::{self, Reply};
use crate::request::{self, Asked, Place, REPLY, TRANSFERRED};

/// What all requests share.
pub(crate) struct Service {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) pieces: Pieces,
    pub(crate) server: ObjectServer,
    /// Where clients may be whose memory tokens name.
    pub(crate) clients: ClientNetworks,
    pub(crate) bucket: String,
    /// Who is waited for so long is given up.
    pub(crate) stall: Duration,
}

impl Service {
    pub(crate) async fn answer(&self, request: Request<Incoming>, client: &Connection) -> Reply {
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
                    self.object(request, name, client).await
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
            dates::iso(SystemTime::UNIX_EPOCH),
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

    async fn object(
        &self,
        request: Request<Incoming>,
        name: ObjectName,
        client: &Connection,
    ) -> Reply {
        match *request.method() {
            Method::HEAD => match self.blocking(move |store| store.head(&name)).await {
                Ok(info) => judged(request.headers(), &info).unwrap_or_else(|| head(&info)),
                Err(error) => reply::store_error(&error),
            },
            Method::GET => self.get(request.headers(), name, client).await,
            Method::PUT => match self.put(request, name, client).await {
                Ok(reply) => reply,
                Err(why) => reply::not_done(&why),
            },
            Method::DELETE => self.delete(request.headers(), name).await,
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

    async fn delete(&self, headers: &HeaderMap, name: ObjectName) -> Reply {
        let etag = match request::condition(headers) {
            Some(PutCondition::Any) => None,
            Some(PutCondition::Matches(etag)) => Some(etag),
            _ => return not_here("the condition of a deletion here is If-Match: with one etag"),
        };
        let is_asked = etag.is_some();
        let deleted = self.blocking(move |store| store.delete(&name, etag.as_ref()));
        match deleted.await {
            Ok(()) => reply::status(StatusCode::NO_CONTENT),
            Err(StoreError::NotFound) if !is_asked => reply::status(StatusCode::NO_CONTENT),
            Err(error) => reply::store_error(&error),
        }
    }

    async fn get(&self, headers: &HeaderMap, name: ObjectName, client: &Connection) -> Reply {
        let object = match self.blocking(move |store| store.open(&name)).await {
            Ok(object) => object,
            Err(error) => return reply::store_error(&error),
        };
        if let Some(reply) = judged(headers, object.info()) {
            return reply;
        }
        let size = object.info().size;
        let asked = match conditions::takes_range(headers, object.info()) {
            true => request::range(headers, size),
            false => Asked::All,
        };
        let (status, range) = match asked {
            Asked::All => (StatusCode::OK, 0..size),
            Asked::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
            Asked::Nothing => return unsatisfiable(size),
        };
        let mut reply = match request::token(headers) {
            None => self.in_band(Arc::clone(&object), range.clone()),
            Some(token) => match self.by_token(&object, range.clone(), token, client).await {
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

    /// Bytes go nowhere but to networks that clients may be in: a token is a client's word.
    fn check_asker(&self, token: &RdmaToken, client: &Connection) -> Result<(), NotDone> {
        let asker = SocketAddr::new(client.address, 0).into();
        let checked = self.server.check_asker(&self.clients, token, &asker);
        checked.map_err(|refused| NotDone::Declined(refused.to_string()))
    }

    /// Writes a range into the client's window.
    async fn by_token(
        &self,
        object: &Arc<dyn StoredObject>,
        range: Range<u64>,
        token: Result<RdmaToken, TokenError>,
        client: &Connection,
    ) -> Result<(), NotDone> {
        let token = token.map_err(|error| NotDone::Declined(error.to_string()))?;
        self.check_asker(&token, client)?;
        if range.end - range.start > token.len() {
            let reason = "the token's window is shorter than what is asked for";
            return Err(NotDone::Declined(reason.to_owned()));
        }
        let _turn = self.pieces.turn(client.client).await?;
        self.pieces.push(object, range, &token).await
    }

    /// The bytes as a body, which is made as fast as the client reads it.
    fn in_band(&self, object: Arc<dyn StoredObject>, range: Range<u64>) -> Reply {
        let len = range.end - range.start;
        let body = ObjectBody::new(self.pieces.clone(), object, range);
        let mut reply = Reply::new(body.boxed_unsync());
        set(&mut reply, CONTENT_LENGTH, &len.to_string());
        reply
    }

    async fn put(
        &self,
        request: Request<Incoming>,
        name: ObjectName,
        client: &Connection,
    ) -> Result<Reply, NotDone> {
        let headers = request.headers();
        let Some(condition) = request::condition(headers) else {
            return Ok(not_here(
                "conditions here: If-None-Match: *, or If-Match: with one etag",
            ));
        };
        let token = request::token(headers);
        let checks = Checks::of(headers, token.is_some())?;
        let length = headers.get(CONTENT_LENGTH).and_then(|it| it.to_str().ok());
        let length = length.and_then(|length| length.parse::<u64>().ok());
        let size = match (&token, length) {
            (Some(_), Some(1..)) => {
                let message = "the bytes come by token or in the body, not both";
                return Ok(reply::error(
                    StatusCode::BAD_REQUEST,
                    "InvalidRequest",
                    message,
                ));
            }
            (Some(Ok(token)), _) => token.len(),
            (Some(Err(error)), _) => return Ok(declined(&error.to_string())),
            (None, Some(length)) => length,
            (None, None) => {
                let message = "Content-Length is missing";
                let status = StatusCode::LENGTH_REQUIRED;
                return Ok(reply::error(status, "MissingContentLength", message));
            }
        };
        if let Some(Ok(token)) = &token
            && let Err(NotDone::Declined(reason)) = self.check_asker(token, client)
        {
            return Ok(declined(&reason));
        }
        let begun = self.blocking(move |store| store.begin(&name, size, &condition));
        let mut upload = SummedUpload::new(begun.await?, checks);
        match &token {
            Some(Ok(token)) => match self.pull(&mut upload, token, client).await {
                Err(NotDone::Declined(reason)) => return Ok(declined(&reason)),
                pulled => pulled?,
            },
            _ => {
                let body = request.into_body();
                self.read_body(body, &mut upload, size, client).await?;
            }
        }
        upload.check()?;
        let info = self.blocking(move |_| upload.commit()).await?;
        let mut reply = match token {
            Some(_) => by_rdma(StatusCode::OK, size),
            None => reply::status(StatusCode::OK),
        };
        reply::set_etag(&mut reply, &info.etag);
        Ok(reply)
    }

    /// Reads the object out of the client's window.
    async fn pull(
        &self,
        upload: &mut SummedUpload,
        token: &RdmaToken,
        client: &Connection,
    ) -> Result<(), NotDone> {
        let _turn = self.pieces.turn(client.client).await?;
        self.pieces.pull(upload, token).await
    }

    /// Writes a body of so many bytes, as it comes. A buffer is taken for what is there already: no
    /// client has one while it is waited for.
    async fn read_body(
        &self,
        mut body: Incoming,
        upload: &mut SummedUpload,
        size: u64,
        client: &Connection,
    ) -> Result<(), NotDone> {
        let (mut rest, mut gathered) = (Bytes::new(), Vec::new());
        while upload.done() < size {
            let len = (size - upload.done()).min(BODY_PIECE as u64) as usize;
            while gathered.len() < len {
                if rest.is_empty() {
                    let data = client.pace.part(self.stall, next_data(&mut body)).await;
                    rest = data.ok_or(NotDone::Slow(self.stall))??;
                    client.pace.moved(rest.len());
                }
                let part = rest.split_to(rest.len().min(len - gathered.len()));
                gathered.extend_from_slice(&part);
            }
            let mut slot = self.pieces.slot().await?;
            slot.bytes()[..len].copy_from_slice(&gathered);
            gathered.clear();
            upload.write(slot, len).await?;
        }
        Ok(())
    }
}

async fn next_data(body: &mut Incoming) -> Result<Bytes, NotDone> {
    match body.frame().await {
        Some(Ok(frame)) => Ok(frame.into_data().unwrap_or_default()),
        Some(Err(error)) => Err(NotDone::Body(error.to_string())),
        None => Err(NotDone::Body("the body ended early".to_owned())),
    }
}

/// What is answered instead of the object where a condition says so.
fn judged(headers: &HeaderMap, info: &ObjectInfo) -> Option<Reply> {
    let mut reply = match conditions::judge(headers, info) {
        Verdict::Go => return None,
        Verdict::NotModified => reply::status(StatusCode::NOT_MODIFIED),
        Verdict::Failed => {
            let found = Some(info.etag.clone());
            reply::store_error(&StoreError::EtagMismatch { found })
        }
    };
    describe(&mut reply, info);
    Some(reply)
}

fn set(reply: &mut Reply, name: HeaderName, value: &str) {
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
        set(reply, LAST_MODIFIED, &dates::http_date(modified));
    }
}
