#!/usr/bin/env python3
"""Doxygen's input filter: our plain // comments as documentation. usage: docs/comments.py HEADER > filtered

  the block at the top of a file              the file's text
  a block directly above a declaration        its text; so is one above a #define
  // after a member, an enumerator            its text, with the lines below that go on in the same column
  indented lines, or words set in columns     kept as they are, as C++ where they look like it
Inside functions comments stay comments. A macro without a comment is an internal one and left out. A file's own text
goes to its end, and what is kept as it is takes two or three lines more; beyond that, lines keep their numbers.
"""
import re
import sys

TOKEN = re.compile(r'''//.*|"(?:\\.|[^"\\])*"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\])+'|[{};]''')
SCOPE = re.compile(r'(?:inline\s+)?namespace\b|class\b|struct\b|union\b|enum\b')
NO_DECLARATION = re.compile(r'static_assert|#(?!\s*define)|[})]|(?:public|private|protected)\s*:|$')
CODE = re.compile(r'(\);|\};|\) \{)\s*(//.*)?$')


def escape(text):
    # Not underscores: inside names they are no markup, and Doxygen links a name only as it is.
    return re.sub(r'[\\@&$#<>%*|~"]|--', r'\\\g<0>', text)


def prose(text):
    parts = text.split('`')
    if len(parts) % 2 == 0:  # a lone backtick is no markup
        return escape(text)
    return ''.join('<code>%s</code>' % re.sub(r'[\\@&$#<>%"]|--', r'\\\g<0>', p) if i % 2 else escape(p)
                   for i, p in enumerate(parts))


def kind_of(line):
    """'' for prose; 'indented'; 'columns' for words set in columns at the margin"""
    if line.startswith('  '):
        return 'indented'
    return 'columns' if re.search(r'[^\s.]  +\S', line) else ''


def block_end(lines, begin):
    """One past the preformatted block that begins here. Empty lines belong to it where it goes on after them."""
    kind, end, gap = kind_of(lines[begin]), begin + 1, False
    for i in range(begin + 1, len(lines)):
        if not lines[i]:
            gap = True
        elif kind_of(lines[i]) == kind or (not gap and kind_of(lines[i])):
            end, gap = i + 1, False
        else:
            break
    return end


def marked_up(lines):
    """The lines of a comment, without //, as lines of Doxygen's markup."""
    out = []
    i = 0
    while i < len(lines):
        if not kind_of(lines[i]):
            out.append(prose(lines[i]))
            i += 1
            continue
        end = block_end(lines, i)
        block = lines[i:end]
        margin = min(len(line) - len(line.lstrip()) for line in block if line)
        code = any(CODE.search(line) for line in block)
        if out and out[-1]:
            out.append('')  # else the paragraph above goes on, and Doxygen takes the end for a stray command
        out += ['\\code{.cpp}' if code else '\\verbatim'] + [line[margin:] for line in block]
        out.append('\\endcode' if code else '\\endverbatim')
        i = end
    return out


def documentation(lines, first=''):
    # Not ///: there Doxygen 1.9.4 stumbles over the second \verbatim of a comment.
    text = '\n'.join(marked_up(lines)).replace('*/', '* /')
    return ('/** %s%s */' % (first, text)).split('\n')


def without_template(text):
    """text behind template <...>"""
    while (match := re.match(r'\s*template\s*<', text)) is not None:
        depth, i = 1, match.end()
        while i < len(text) and depth > 0:
            depth += {'<': 1, '>': -1}.get(text[i], 0)
            i += 1
        text = text[i:]
    return text.strip()


class Header:
    def __init__(self, lines):
        self.lines = lines
        self.out = []
        self.scopes = []  # kind of each open brace: 'enum', 'scope' or 'body'
        self.statement = ''  # the code since the last ; { or }
        self.trailing_column = None  # of a comment that the next line may go on with

    def in_body(self):
        return 'body' in self.scopes

    def in_enum(self):
        return bool(self.scopes) and self.scopes[-1] == 'enum'

    def open_brace(self):
        text = without_template(re.sub(r'\b(?:public|private|protected)\s*:|POCKET_NAMESPACE_\w+|\[\[.*?\]\]', ' ',
                                       self.statement))
        if SCOPE.match(text):
            self.scopes.append('enum' if text.startswith('enum') else 'scope')
        else:
            self.scopes.append('body')

    def read_code(self, line):
        """Follows braces and statements; returns where the line's comment begins, or None."""
        position = 0
        for token in TOKEN.finditer(line):
            self.statement += line[position:token.start()]
            position = token.end()
            text = token.group()
            if text.startswith('//'):
                return token.start()
            if text == '{':
                self.open_brace()
            elif text == '}' and self.scopes:
                self.scopes.pop()
            if text in '{};':
                self.statement = ''
        self.statement += line[position:] + ' '
        return None

    def between_declarations(self):
        rest = re.sub(r'(?:public|private|protected)\s*:|POCKET_NAMESPACE_\w+', ' ', self.statement).strip()
        return not self.in_body() and (self.in_enum() or rest == '')

    def comment_block(self, start):
        end = start
        while end < len(self.lines) and self.lines[end].lstrip().startswith('//'):
            end += 1
        return end

    def text_of(self, start, end):
        return [re.sub(r'^\s*// ?', '', l).rstrip() for l in self.lines[start:end]]

    def put_comment(self, start, end):
        follows = self.lines[end].strip() if end < len(self.lines) else ''
        if not self.between_declarations() or NO_DECLARATION.match(follows):
            self.out += self.lines[start:end]
        else:
            self.out += documentation(self.text_of(start, end))

    def put_macro(self, start):
        """A #define with its continuation lines; without a comment above, empty lines."""
        end = start + 1
        while self.lines[end - 1].endswith('\\'):
            end += 1
        documented = bool(self.out) and self.out[-1].endswith('*/')
        self.out += self.lines[start:end] if documented else [''] * (end - start)
        return end

    def put_code(self, line):
        enum = self.in_enum()
        column = self.read_code(line)
        self.trailing_column = None
        code = line if column is None else line[:column].rstrip()
        forward = re.fullmatch(r'\s*(?:class|struct) \w+;', code) is not None
        outside = not self.in_body() and not forward and (enum or code.endswith(';') or (code.endswith('}') and code.strip() != '}'))
        if column is not None and code.strip() and outside:
            self.trailing_column = column
            line = code + '  ///< ' + prose(line[column:].lstrip('/').strip())
        self.out.append(line)

    def run(self):
        top = self.comment_block(0)
        self.out += [''] * top
        i = top
        while i < len(self.lines):
            line = self.lines[i]
            if line.lstrip().startswith('//'):
                if self.trailing_column == len(line) - len(line.lstrip()):
                    self.out.append('  ///< ' + prose(line.lstrip(' /')))
                    i += 1
                    continue
                end = self.comment_block(i)
                self.put_comment(i, end)
                i = end
            elif line.lstrip().startswith('#define'):
                i = self.put_macro(i)
            elif line.lstrip().startswith('#'):
                self.out.append(line)
                i += 1
            else:
                self.put_code(line)
                i += 1
        # Last, where it moves no line.
        self.out += documentation(self.text_of(0, top), '\\file\n')
        return self.out


def main():
    with open(sys.argv[1], encoding='utf-8') as file:
        lines = file.read().split('\n')
    print('\n'.join(Header(lines).run()))


main()
