//! The OpenAPI document, walked: everything it tells of is called over a real socket, and answers
//! with a status it names and a body that fits; and the router has no route that it does not tell of.

use std::collections::BTreeSet;

use http_body_util::BodyExt;
use rlctl::gateway::api::OPENAPI;
use serde_json::{Value, json};

use crate::support::api::Served;
use crate::support::redis::RedisServer;
use crate::support::schema::{misfit, resolve};

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

fn document() -> Value {
    serde_json::from_str(OPENAPI).expect("it is JSON")
}

/// A request as the examples of an operation have it.
struct Call {
    path: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
}

impl Call {
    fn of(path: &str, operation: &Value) -> Call {
        let mut call = Call { path: path.into(), headers: Vec::new(), body: None };
        let mut query = Vec::new();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            let example = match &parameter["example"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            match parameter["in"].as_str().unwrap() {
                "path" => call.path = call.path.replace(&format!("{{{name}}}"), &example),
                "query" => query.push(format!("{name}={example}")),
                "header" => call.headers.push((name.to_lowercase(), example)),
                other => panic!("a parameter in {other}"),
            }
        }
        assert!(!call.path.contains('{'), "{path}: every name in a path is a parameter");
        if !query.is_empty() {
            call.path += &format!("?{}", query.join("&"));
        }
        let example = &operation["requestBody"]["content"]["application/json"]["example"];
        call.body = (!example.is_null()).then(|| example.to_string());
        call
    }
}

/// Checks an answer against what the document says of it; gives its status.
async fn answers_as_told(
    served: &Served,
    document: &Value,
    method: &str,
    call: &Call,
    operation: &Value,
) -> u16 {
    let about = format!("{method} {}", call.path);
    let headers: Vec<(&str, &str)> =
        call.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let body = call.body.as_deref().map(str::as_bytes);
    let response = served.open(&method.to_uppercase(), &call.path, &headers, body).await;
    let status = response.status().as_u16();
    let told = operation["responses"].get(status.to_string());
    let told =
        resolve(document, told.unwrap_or_else(|| panic!("{about}: {status} is not told of")));
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let kind = kind.split(';').next().unwrap().trim();
    let content = told["content"].get(kind);
    let schema = &content.unwrap_or_else(|| panic!("{about}: {status} as {kind}"))["schema"];
    let mut body = response.into_body();
    if kind == "text/event-stream" {
        let frame = body.frame().await.unwrap().unwrap();
        assert!(frame.data_ref().unwrap().starts_with(b"event: stats\ndata: {"), "{about}");
        return status;
    }
    let bytes = body.collect().await.unwrap().to_bytes();
    let value = if kind.ends_with("json") {
        serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{about}: {e}"))
    } else {
        Value::String(String::from_utf8(bytes.to_vec()).unwrap())
    };
    if let Some(wrong) = misfit(document, schema, &value, "body") {
        panic!("{about}: {status}: {wrong}");
    }
    status
}

fn operations(document: &Value) -> Vec<(String, &'static str, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let mut found = Vec::new();
    for (path, item) in paths {
        // What is removed comes last, and so does what replaces everything.
        for method in METHODS {
            if let Some(operation) = item.get(method) {
                found.push((path.clone(), method, operation.clone()));
            }
        }
    }
    let late = |path: &str, method: &str| match (path, method) {
        ("/api/v1/rules/{name}", "delete") => 3,
        ("/api/v1/policy" | "/api/v1/policy/rollback", "put" | "post") => 2,
        (_, "delete") => 1,
        _ => 0,
    };
    found.sort_by_key(|(path, method, _)| late(path, method));
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_it_tells_of_answers_as_told() {
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    let document = document();
    let charged = served.check(json!({"identity": "user:charged"})).await.json()["charge"].clone();
    for (path, method, operation) in operations(&document) {
        let mut call = Call::of(&path, &operation);
        if let Some(body) =
            &operation["requestBody"]["content"]["application/json"]["example"].as_object()
        {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let example = Value::Object((*body).clone());
            assert_eq!(misfit(&document, schema, &example, "example"), None, "{method} {path}");
            if body.contains_key("charge") {
                let mut body = example;
                body["charge"] = charged.clone();
                call.body = Some(body.to_string());
            }
        }
        let status = answers_as_told(&served, &document, method, &call, &operation).await;
        assert!(status < 300, "{method} {path}: the example answers {status}");
    }
    // And when the body is nonsense, too large, or says nothing.
    for (path, method, operation) in operations(&document) {
        if operation["requestBody"].is_null() {
            continue;
        }
        for body in ["{", "{\"colour\": 1}", "[1]", "{\"rule\": 7, \"charge\": 7, \"checks\": {}}"]
        {
            let call = Call { body: Some(body.into()), ..Call::of(&path, &operation) };
            let status = answers_as_told(&served, &document, method, &call, &operation).await;
            assert_eq!(status, 400, "{method} {path} {body}");
        }
        // Each has a bound of its own; what is far beyond it is not even taken.
        let mut status = 400;
        for bound in [16 << 10, 1 << 20, 8 << 20] {
            let call = Call { body: Some("x".repeat(bound + 1)), ..Call::of(&path, &operation) };
            status = answers_as_told(&served, &document, method, &call, &operation).await;
            if status != 400 {
                break;
            }
        }
        assert_eq!(status, 413, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_tells_of_every_route() {
    let source = include_str!("../src/gateway/api/mod.rs");
    let routes: BTreeSet<&str> =
        source.split(".route(").skip(1).filter_map(|rest| rest.split('"').nth(1)).collect();
    let document = document();
    let told: BTreeSet<&str> =
        document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(routes, told);
    // Whatever method it does not tell of does not exist.
    let server = RedisServer::start();
    let served = Served::published(&server).await;
    for path in told {
        let item = &document["paths"][path];
        let any = METHODS.iter().find_map(|method| item.get(*method)).unwrap();
        for method in METHODS.iter().filter(|method| item.get(**method).is_none()) {
            let call = Call::of(path, any);
            let path = call.path.split('?').next().unwrap();
            let reply = served.send(&method.to_uppercase(), path, &[], None).await;
            assert_eq!(reply.status, 405, "{method} {path}");
            assert_eq!(reply.header("content-type"), "application/problem+json");
        }
    }
}
