"""The GPU report as Markdown."""


def markdown(report):
    """The text of a report.

    Args:
        report: dictionary with `heading`, `notes` and `parts`: a dictionary from title to a result
            (rows, checks, notes, skipped, error, seconds); see `part`.
    """
    parts = report['parts']
    lines = ['# GPU report', '', report['heading'], '', *report['notes'], '', '## Summary', '',
             *_table([{'part': title, 'result': _state(result), 's': result.get('seconds')}
                      for title, result in parts.items()])]
    checks = [{'check': check['what'], 'value': check['value'], 'limit': check['limit'],
               'passed': 'yes' if check['passed'] else '**NO**'}
              for result in parts.values() for check in result.get('checks', ())]
    lines += ['', *_table(checks)]
    for title, result in parts.items():
        lines += ['', f'## {title}', '']
        if 'error' in result:
            lines += ['Failed:', '', '```', result['error'], '```']
        if 'skipped' in result:
            lines += [f'Not run: {result["skipped"]}.']
        lines += [*_table(result.get('rows', ())), '']
        lines += [f'- {note}' for note in result.get('notes', ())]
    return '\n'.join(lines).rstrip() + '\n'


def _state(result):
    if 'error' in result:
        return '**failed**'
    if 'skipped' in result:
        return f'not run: {result["skipped"]}'
    failed = [check for check in result['checks'] if not check['passed']]
    return f'**{len(failed)} checks failed**' if failed else 'done'


def _table(rows):
    """Lines of a Markdown table with a column for each key of any row."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        return []
    cells = [columns, ['---'] * len(columns)] + [
        [_cell(row.get(column)) for column in columns] for row in rows]
    return ['| ' + ' | '.join(row) + ' |' for row in cells]


def _cell(value):
    return '' if value is None else str(value).replace('|', r'\|').replace('\n', ' ')
