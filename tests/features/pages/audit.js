// See audit.py: evaluates to a list of what is wrong in the page.
(() => {
  const wrong = [];
  const seen = (node) => node.getClientRects().length > 0 && getComputedStyle(node).visibility !== 'hidden';
  const where = (node) => `${node.tagName.toLowerCase()}.${node.getAttribute('class') || ''} "${(node.textContent || '').trim().slice(0, 30)}"`;
  const said = (node) => [...node.childNodes].some((part) => part.textContent.trim()
    && (part.nodeType === Node.TEXT_NODE || getComputedStyle(part).display !== 'none'));
  const named = (node) => (node.getAttribute('aria-label') || '').trim()
    || [...(node.labels || [])].some((label) => label.textContent.trim())
    || (node.getAttribute('aria-labelledby') || '').split(' ').some((id) => document.getElementById(id)?.textContent.trim())
    || (node.matches('a, button, summary') && (said(node) || node.querySelector('[aria-label]')));
  for (const node of document.querySelectorAll('a[href], button, summary, input:not([type=hidden]), select, textarea, [role=slider], meter')) {
    if (seen(node) && !node.closest('svg') && !named(node)) wrong.push(`no name: ${where(node)}`);
  }
  for (const node of document.querySelectorAll('svg a')) {
    if (!node.getAttribute('aria-label') && !node.querySelector('title')) wrong.push(`no name: ${where(node)}`);
  }
  for (const node of document.querySelectorAll('[aria-hidden=true] :is(a[href], button, input, select, [tabindex])')) {
    if (node.tabIndex >= 0) wrong.push(`hidden, but a key leads to it: ${where(node)}`);
  }
  for (const node of document.querySelectorAll('th')) if (!node.textContent.trim()) wrong.push(`empty th: ${where(node)}`);
  const regions = [...document.querySelectorAll('section[aria-label], nav[aria-label]')].map((node) => node.getAttribute('aria-label'));
  for (const name of regions) if (regions.indexOf(name) !== regions.lastIndexOf(name)) wrong.push(`region twice: ${name}`);
  const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`id twice: ${id}`);
  if (document.querySelectorAll('h1').length !== 1) wrong.push('not one h1');
  if (document.querySelectorAll('main').length !== 1) wrong.push('not one main');
  if (!document.documentElement.lang) wrong.push('no language');
  let level = 1;
  for (const node of document.querySelectorAll('h1, h2, h3, h4')) {
    const next = Number(node.tagName[1]);
    if (next > level + 1) wrong.push(`heading skipped: ${where(node)}`);
    level = next;
  }
  for (const node of document.querySelectorAll('[tabindex]')) if (node.tabIndex > 0) wrong.push(`tabindex: ${where(node)}`);
  const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((v, i) => v * top[3] + below[i] * (1 - top[3]));
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] >= 0.999) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const done = new Set();
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || done.has(node) || !seen(node)) continue;
    if (node.closest('svg, script, .visually-hidden, .skip-link, option, :disabled')) continue;
    done.add(node);
    const style = getComputedStyle(node), ground = behind(node);
    const ink = over(rgba(style.color), ground);
    const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5) - 0.05) wrong.push(`contrast ${ratio.toFixed(2)}: ${where(node)}`);
  }
  return [...new Set(wrong)];
})()
