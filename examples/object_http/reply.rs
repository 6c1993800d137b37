//! Answers, and what errors are called in S3.

use fabricast::object::{ObjectEtag, StoreError};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, ETAG, HeaderValue};
use hyper::{Response, StatusCode};

use crate::Failure;
use crate::pieces::NotDone;

pub(crate) type Body = UnsyncBoxBody<Bytes, Failure>;
pub(crate) type Reply = Response<Body>;

pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn status(status: StatusCode) -> Reply {
    let mut reply = Response::new(empty());
    *reply.status_mut() = status;
    reply
}

pub(crate) fn xml(status: StatusCode, text: String) -> Reply {
    let body = Full::from(text)
        .map_err(|never| match never {})
        .boxed_unsync();
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    let kind = HeaderValue::from_static("application/xml");
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    reply
}

/// An error as S3 says it.
pub(crate) fn error(status: StatusCode, code: &str, message: &str) -> Reply {
    let (code, message) = (escape(code), escape(message));
    let head = r#"<?xml version="1.0" encoding="UTF-8"?>"#;
    let text = format!("{head}<Error><Code>{code}</Code><Message>{message}</Message></Error>");
    xml(status, text)
}

pub(crate) fn not_done(why: &NotDone) -> Reply {
    let failed = StatusCode::INTERNAL_SERVER_ERROR;
    match why {
        NotDone::Store(why) => store_error(why),
        NotDone::Declined(reason) => error(StatusCode::NOT_IMPLEMENTED, "NotImplemented", reason),
        NotDone::Moved(why) => {
            let touched = match why.posted {
                true => "the client's memory may have been touched",
                false => "nothing went out",
            };
            error(
                failed,
                "InternalError",
                &format!("{}; {touched}", why.reason),
            )
        }
        NotDone::Body(reason) => error(StatusCode::BAD_REQUEST, "IncompleteBody", reason),
        NotDone::Slow(limit) => {
            let message = format!("the body was waited for longer than {limit:?}");
            error(StatusCode::BAD_REQUEST, "RequestTimeout", &message)
        }
        NotDone::Check(why) => error(why.status, why.code, &why.message),
    }
}

pub(crate) fn store_error(why: &StoreError) -> Reply {
    let (status, code) = match why {
        StoreError::NotFound => (StatusCode::NOT_FOUND, "NoSuchKey"),
        StoreError::Exists | StoreError::EtagMismatch { .. } => {
            (StatusCode::PRECONDITION_FAILED, "PreconditionFailed")
        }
        StoreError::Name(_) | StoreError::NamePart => (StatusCode::BAD_REQUEST, "InvalidArgument"),
        StoreError::NameTaken => (StatusCode::CONFLICT, "InvalidObjectState"),
        StoreError::NotAnObject | StoreError::Denied => (StatusCode::FORBIDDEN, "AccessDenied"),
        StoreError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "EntityTooLarge"),
        StoreError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "SlowDown"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
    };
    error(status, code, &why.to_string())
}

pub(crate) fn set_etag(reply: &mut Reply, etag: &ObjectEtag) {
    // Visible ASCII without quotes is a value with quotes.
    if let Ok(value) = HeaderValue::from_str(&format!("\"{etag}\"")) {
        reply.headers_mut().insert(ETAG, value);
    }
}

/// Text within XML. What XML can't say becomes U+FFFD.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => escaped.push_str(&format!("&#{};", u32::from(c))),
            c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
