//! A minimal XML tree that can be parsed, modified and written. The XML library escapes all text and attributes.
//!
//! Source: quick-xml's documentation.

use quick_xml::escape::unescape;
use quick_xml::events::{BytesEnd, BytesStart, BytesText, Event};
use quick_xml::{Reader, Writer};

/// Maximum nesting depth. libvirt's own parser allows 256.
const MAX_DEPTH: usize = 512;

/// An element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Element {
    pub name: String,
    pub attributes: Vec<(String, String)>,
    pub children: Vec<Element>,
    pub text: String,
}

impl Element {
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.attributes.push((key.into(), value.to_string()));
        self
    }

    pub fn with_text(mut self, text: impl ToString) -> Self {
        self.text = text.to_string();
        self
    }

    pub fn with_child(mut self, child: Element) -> Self {
        self.children.push(child);
        self
    }

    pub fn with_children(mut self, children: impl IntoIterator<Item = Element>) -> Self {
        self.children.extend(children);
        self
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|a| a.0 == key).map(|a| &*a.1)
    }

    pub fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|c| c.name == name)
    }

    /// Finds the element at the end of a path.
    pub fn at(&self, path: &[&str]) -> Option<&Element> {
        path.iter().try_fold(self, |element, name| element.child(name))
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |c| c.name == name)
    }

    /// Serializes the element.
    pub fn write(&self) -> Result<String, String> {
        let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
        self.write_to(&mut writer).map_err(|e| e.to_string())?;
        String::from_utf8(writer.into_inner()).map_err(|e| e.to_string())
    }

    fn write_to(&self, writer: &mut Writer<Vec<u8>>) -> std::io::Result<()> {
        let mut start = BytesStart::new(&*self.name);
        for (key, value) in &self.attributes {
            start.push_attribute((&**key, &**value));
        }
        if self.children.is_empty() && self.text.is_empty() {
            return writer.write_event(Event::Empty(start));
        }
        writer.write_event(Event::Start(start))?;
        if !self.text.is_empty() {
            writer.write_event(Event::Text(BytesText::new(&self.text)))?;
        }
        for child in &self.children {
            child.write_to(writer)?;
        }
        writer.write_event(Event::End(BytesEnd::new(&*self.name)))
    }
}

fn element(start: &BytesStart<'_>) -> Result<Element, String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|e| e.to_string());
    let mut element = Element::new(&text(start.name().as_ref())?);
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|e| e.to_string())?;
        let value = attribute.unescape_value().map_err(|e| e.to_string())?;
        element.attributes.push((text(attribute.key.as_ref())?, value.into_owned()));
    }
    Ok(element)
}

/// Drops white space between child elements. The text of a leaf element is kept exactly, because a name may end in a
/// space.
fn trim_whitespace(mut element: Element) -> Element {
    let trimmed = element.text.trim();
    if !element.children.is_empty() || trimmed.is_empty() {
        element.text = trimmed.to_string();
    }
    element
}

/// Parses the next of several documents; `None` at the end. Document types are rejected, because they can name files
/// and expand without bound.
fn next(reader: &mut Reader<&[u8]>) -> Result<Option<Element>, String> {
    let mut open: Vec<Element> = Vec::new();
    loop {
        let event = reader.read_event().map_err(|e| e.to_string())?;
        let (mut closed, mut text) = (None, None);
        match event {
            Event::Start(_) | Event::Empty(_) if open.len() >= MAX_DEPTH => return Err("too deep".into()),
            Event::Start(start) => open.push(element(&start)?),
            Event::Empty(start) => closed = Some(element(&start)?),
            Event::End(_) => closed = open.pop().map(trim_whitespace),
            Event::Text(bytes) => {
                let raw = std::str::from_utf8(&bytes).map_err(|e| e.to_string())?;
                text = Some(unescape(raw).map_err(|e| e.to_string())?.into_owned());
            }
            Event::CData(bytes) => {
                text = Some(std::str::from_utf8(&bytes).map_err(|e| e.to_string())?.to_string());
            }
            Event::DocType(_) => return Err("a document type is not allowed".into()),
            Event::Eof if open.is_empty() => return Ok(None),
            Event::Eof => return Err("it ends unexpectedly".into()),
            _ => {}
        }
        match (closed, open.last_mut()) {
            (Some(element), Some(parent)) => parent.children.push(element),
            (Some(element), None) => return Ok(Some(element)),
            (None, Some(within)) => within.text.push_str(&text.unwrap_or_default()),
            (None, None) => {}
        }
    }
}

/// Parses a document with one root element.
pub(super) fn parse(text: &str) -> Result<Element, String> {
    let mut reader = Reader::from_str(text);
    let root = next(&mut reader)?.ok_or("there is no element")?;
    match next(&mut reader)? {
        None => Ok(root),
        Some(_) => Err("it has more than one root element".into()),
    }
}

/// Parses consecutive documents, up to the first invalid one.
pub(super) fn parse_each(text: &str) -> Vec<Element> {
    let mut reader = Reader::from_str(text);
    std::iter::from_fn(|| next(&mut reader).ok().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_elements_read_back_unchanged() {
        let hostile = r#"a"b'c<d>&amp;]]>e"#;
        let tree =
            Element::new("domain").with("type", hostile).with_child(Element::new("name").with_text(hostile));
        let text = tree.write().unwrap();
        assert!(!text.contains("<d>"), "{text}");
        assert_eq!(parse(&text).unwrap(), tree);
    }

    #[test]
    fn text_is_kept_exactly_and_space_between_elements_is_dropped() {
        let tree = parse("<a>\n  <b> x <!-- y -->z </b>\n  <c>\n  </c>\n</a>\n").unwrap();
        assert_eq!((&*tree.text, &*tree.child("b").unwrap().text), ("", " x z "));
        assert_eq!(tree.child("c").unwrap().text, "");
        assert_eq!(parse(&tree.write().unwrap()).unwrap(), tree);
    }

    #[test]
    fn documents_with_other_constructs_are_rejected() {
        for bad in [
            "",
            "<a>",
            "<a/><b/>",
            "text",
            "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
            "<a>&x;</a>",
            "<a b='1' b='2'/>",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse(&("<a>".repeat(1000) + &"</a>".repeat(1000))).is_err());
    }
}
