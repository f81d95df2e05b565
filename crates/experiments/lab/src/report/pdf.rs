//! Converts a figure to PDF. The text stays text, in a subset of DejaVu Sans that the file contains, so that it does not
//! depend on the fonts of the host.
//!
//! Source: ISO 32000-1 (PDF 1.7).

mod canonical;

use std::sync::{Arc, OnceLock};
use svg2pdf::usvg::fontdb::Database;
use svg2pdf::usvg::{Options, Tree};
use svg2pdf::{ConversionOptions, PageOptions};

/// The fonts. Those of the host are needed only for scripts that DejaVu lacks, such as Chinese.
fn fonts(with_host: bool) -> Arc<Database> {
    static FONTS: [OnceLock<Arc<Database>>; 2] = [OnceLock::new(), OnceLock::new()];
    let load = || {
        let mut fonts = Database::new();
        fonts.load_font_data(dejavu::sans::regular().to_vec());
        fonts.load_font_data(dejavu::sans::bold().to_vec());
        fonts.set_sans_serif_family("DejaVu Sans");
        if with_host {
            fonts.load_system_fonts();
        }
        Arc::new(fonts)
    };
    FONTS[usize::from(with_host)].get_or_init(load).clone()
}

/// Whether DejaVu Sans has the letters of the script: up to Arabic, and symbols.
fn is_common(letter: char) -> bool {
    matches!(letter, '\0'..='\u{77f}' | '\u{1e00}'..='\u{27bf}' | '\u{fffd}')
}

/// The PDF of an SVG document. The same document gives the same bytes.
///
/// # Errors
/// If the document is invalid.
pub fn pdf(svg: &str) -> Result<Vec<u8>, String> {
    let fontdb = fonts(!svg.chars().all(is_common));
    let options = Options { fontdb, font_family: "DejaVu Sans".into(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
    let document = svg2pdf::to_pdf(&tree, ConversionOptions::default(), PageOptions::default());
    document.map(canonical::canonical).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_text_in_an_embedded_font_and_the_bytes_are_the_same_each_time() {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"90\" height=\"20\" font-family=\"DejaVu Sans\">\
            <text x=\"2\" y=\"14\">L2 misses</text><text x=\"2\" y=\"18\" font-weight=\"bold\">bold</text>\
            <path d=\"M0 0h9v9z\" opacity=\"0.5\"/><path d=\"M1 0h9v9z\" fill-opacity=\"0.7\"/></svg>";
        let bytes = pdf(svg).unwrap();
        assert!(bytes.starts_with(b"%PDF-1.7"));
        let has = |word: &str| bytes.windows(word.len()).any(|window| window == word.as_bytes());
        assert!(has("DejaVuSans") && has("/FontFile"), "the font is not embedded");
        assert!(!has("/CreationDate"));
        for _ in 0..20 {
            assert!(pdf(svg).unwrap() == bytes);
        }
        assert!(pdf("<svg").is_err());
    }
}
