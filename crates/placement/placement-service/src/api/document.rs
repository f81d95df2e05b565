//! Completes the OpenAPI document generated from the routes.
//!
//! Source: the OpenAPI Specification 3.1; RFC 9457 for error answers.

use utoipa::openapi::schema::{KnownFormat, SchemaFormat, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, Schema};

/// Content type of error answers.
const PROBLEM: &str = "application/problem+json";

/// Adds the title, the authentication scheme and the error answers common to all operations.
pub(super) fn complete_document(mut document: OpenApi) -> OpenApi {
    document.info.title = "Longma placement".into();
    document.info.version = env!("CARGO_PKG_VERSION").into();
    document.info.description =
        Some("Places virtual machines on NUMA hosts, keeps them there and explains its choices.".into());
    let components = document.components.get_or_insert_default();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    components.add_security_scheme("token", bearer);
    document.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    components.schemas.values_mut().for_each(add_integer_bounds);
    for path in document.paths.paths.values_mut() {
        let operations = [&mut path.get, &mut path.post, &mut path.put, &mut path.delete];
        for operation in operations.into_iter().flatten() {
            for parameter in operation.parameters.iter_mut().flatten() {
                parameter.schema.iter_mut().for_each(add_integer_bounds);
            }
            let refused = |description: &str| RefOr::T(problem_response(description));
            let answers = &mut operation.responses.responses;
            answers.insert("4XX".into(), refused("rejected: the body gives the reason"));
            answers.insert(
                "5XX".into(),
                refused("temporarily unavailable: the body gives the reason and whether to retry"),
            );
        }
    }
    document
}

fn problem_response(description: &str) -> Response {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(description).content(PROBLEM, body).build()
}

/// Adds the bounds of unsigned integers, which their OpenAPI formats do not express.
fn add_integer_bounds(schema: &mut RefOr<Schema>) {
    let RefOr::T(schema) = schema else { return };
    match schema {
        Schema::Object(object) => {
            let is_integer = match &object.schema_type {
                SchemaType::Type(kind) => *kind == Type::Integer,
                SchemaType::Array(kinds) => kinds.contains(&Type::Integer),
                SchemaType::AnyValue => false,
            };
            let max: Option<usize> = match object.format {
                Some(SchemaFormat::KnownFormat(KnownFormat::Int32)) => Some(u32::MAX as usize),
                Some(SchemaFormat::KnownFormat(KnownFormat::Int64)) => Some(u64::MAX as usize),
                _ => None,
            };
            if let Some(max) = max.filter(|_| is_integer && object.minimum.is_some()) {
                object.format = None;
                object.maximum.get_or_insert(max.into());
            }
            object.properties.values_mut().for_each(add_integer_bounds);
        }
        Schema::Array(array) => {
            if let utoipa::openapi::schema::ArrayItems::RefOrSchema(items) = &mut array.items {
                add_integer_bounds(items);
            }
        }
        Schema::OneOf(one) => one.items.iter_mut().for_each(add_integer_bounds),
        Schema::AllOf(all) => all.items.iter_mut().for_each(add_integer_bounds),
        Schema::AnyOf(any) => any.items.iter_mut().for_each(add_integer_bounds),
        _ => {}
    }
}
