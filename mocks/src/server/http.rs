//! Listens on loopback, reads requests and sends replies, with their timing and their faults. What is answered is decided in
//! `answers.rs`.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Channel, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::answers::{self, Answers};
use super::reply::{Body, End, Reply};

/// No request of an agent is larger; what is, is none.
const LARGEST: usize = 256 << 20;

type Sent = Response<BoxBody<Bytes, io::Error>>;

/// Serves until it is told to end.
pub(super) fn run(port: u16, answers: Answers, ready: impl FnOnce(SocketAddr)) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answers = Arc::new(Mutex::new(answers));
    runtime.block_on(async {
        // Never another address: nothing of a test is to be seen from outside.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.with_context(|| format!("cannot listen on 127.0.0.1:{port}"))?;
        let (mut ended, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        ready(listener.local_addr()?);
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    let answers = Arc::clone(&answers);
                    tokio::spawn(async move {
                        let service = service_fn(move |request| serve(request, Arc::clone(&answers)));
                        // A connection that breaks is the agent's affair, or was meant to.
                        let _ = hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                    });
                }
                _ = ended.recv() => break,
                _ = interrupted.recv() => break,
            }
        }
        anyhow::Ok(())
    })?;
    answers.lock().unwrap_or_else(PoisonError::into_inner).passed()
}

async fn serve(request: Request<Incoming>, answers: Arc<Mutex<Answers>>) -> Result<Sent, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, LARGEST).collect().await else {
        return Ok(plain(StatusCode::PAYLOAD_TOO_LARGE, "the request was cut off, or is too large"));
    };
    let signed = ["x-api-key", "authorization"].iter().any(|name| head.headers.contains_key(*name));
    let request = answers::Request {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        signed,
        body: serde_json::from_slice(&body.to_bytes()).unwrap_or_default(),
    };
    let reply = answers.lock().unwrap_or_else(PoisonError::into_inner).reply(request);
    Ok(match reply {
        Ok(reply) => send(reply),
        Err(error) => {
            eprintln!("error: {error:#}");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "the server cannot write what it has to")
        }
    })
}

fn send(reply: Reply) -> Sent {
    let Reply { status, headers, body } = reply;
    let (kind, body) = match body {
        Body::Whole(value) => ("application/json", whole(value.to_string())),
        Body::Stream { events, pace_ms, end } => {
            let (mut sender, body) = Channel::<Bytes, io::Error>::new(1);
            tokio::spawn(async move {
                for event in events {
                    tokio::time::sleep(Duration::from_millis(pace_ms)).await;
                    if sender.send_data(Bytes::from(event)).await.is_err() {
                        // Nobody is there any more.
                        return;
                    }
                }
                match end {
                    End::Whole => {}
                    End::Broken => {
                        // What was sent is to arrive before the connection goes.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        sender.abort(io::Error::other("the scenario breaks it off"));
                    }
                    End::Stalled => std::future::pending().await,
                }
            });
            ("text/event-stream", body.boxed())
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn whole(text: impl Into<Bytes>) -> BoxBody<Bytes, io::Error> {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

fn plain(status: StatusCode, text: &'static str) -> Sent {
    let mut response = Response::new(whole(text));
    *response.status_mut() = status;
    response
}
