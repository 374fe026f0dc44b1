//! Renders documents as one HTML file without network access or scripts, which follows the reader's light or
//! dark mode.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::document::{Block, Cell, Document, Kind, Picture, Section, Table};

const STYLE: &str = include_str!("style.css");

pub fn render(document: &Document) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (document.title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (document.title) }
                    p { (document.subtitle) }
                }
                main { @for part in &document.sections { (section(part)) } }
            }
        }
    };
    page.into_string()
}

fn section(section: &Section) -> Markup {
    html! {
        section {
            h2 { (section.title) }
            @for part in &section.blocks { (block(part)) }
        }
    }
}

fn block(block: &Block) -> Markup {
    match block {
        Block::Paragraph(text) => html! { p { (text) } },
        Block::Table(shown) => table(shown),
        Block::Folded(title, shown) => html! { details { summary { (title) } (table(shown)) } },
        Block::Pictures(pictures) => html! {
            div class="pictures" { @for shown in pictures { (picture(shown)) } }
        },
    }
}

fn picture(picture: &Picture) -> Markup {
    html! {
        figure {
            h3 { (picture.title) }
            (picture.svg)
            figcaption { (picture.caption) }
        }
    }
}

fn table(table: &Table) -> Markup {
    html! {
        div class="scroll" {
            table {
                thead { tr { @for column in &table.columns { th class=(class(column.kind)) { (column.title) } } } }
                tbody {
                    @for row in &table.rows {
                        tr { @for (shown, column) in row.iter().zip(&table.columns) { (cell(shown, column.kind)) } }
                    }
                }
            }
        }
    }
}

fn cell(cell: &Cell, kind: Kind) -> Markup {
    html! {
        td class=(class(kind)) {
            @match (&cell.link, cell.strong) {
                (Some(link), _) => a href={ (link) ".html" } { (cell.text) },
                (None, true) => strong { (cell.text) },
                (None, false) => (cell.text),
            }
        }
    }
}

fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Words => "words",
        Kind::Numbers => "figures",
        Kind::Literal => "literal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::document::{literal, row, words};

    #[test]
    fn all_data_stays_text_and_nothing_is_fetched() {
        let rows = [row!["<script>alert(1)</script>", Cell::link("a & b", "x\"y/report")]];
        let table = Table::new([literal(&["said"]), words(&["split"])], rows);
        let blocks = vec![Block::Paragraph("</p>".to_owned()), Block::Folded("all".to_owned(), table)];
        let document = Document {
            title: "<i>".to_owned(),
            sections: vec![Section::new("S", blocks)],
            ..Document::default()
        };
        let page = render(&document);
        let (_, body) = page.split_once("<body>").unwrap();
        insta::assert_snapshot!(body, @r##"
        <header><h1>&lt;i&gt;</h1><p></p></header><main><section><h2>S</h2><p>&lt;/p&gt;</p><details><summary>all</summary><div class="scroll"><table><thead><tr><th class="literal">said</th><th class="words">split</th></tr></thead><tbody><tr><td class="literal">&lt;script&gt;alert(1)&lt;/script&gt;</td><td class="words"><a href="x&quot;y/report.html">a &amp; b</a></td></tr></tbody></table></div></details></section></main></body></html>
        "##);
        for fetched in ["<script", "<link", "src=", "url(", "@import"] {
            assert!(!page.contains(fetched), "{fetched}");
        }
    }
}
