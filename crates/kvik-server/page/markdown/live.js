// A text that grows: blocks that are complete are rendered once, only the last one again.
import { parseBlocks } from "./blocks.js";
import { renderBlock } from "./render.js";

/** Shows a growing text in `element`; `update(text)` takes the whole text so far. */
export function createLiveMarkdown(element) {
  let settled = 0; // where the last block begins
  let last = null; // {block, node}
  return {
    update(raw) {
      // Blocks count without the CR of a CRLF. A CR at the end, whose LF has not come yet, takes the place of both.
      const text = raw.replaceAll("\r\n", "\n");
      const blocks = parseBlocks(text.slice(settled));
      if (blocks.length === 0) return;
      const final = blocks.pop();
      const nodes = blocks.map(renderBlock);
      if (nodes.length > 0) {
        last?.node.remove();
        last = null;
        element.append(...nodes);
      }
      last = showLast(element, last, final);
      settled += final.start;
    },
  };
}

function showLast(element, last, block) {
  if (last?.block.type === "code" && block.type === "code" && last.block.language === block.language) {
    last.node.querySelector("code").textContent = block.text;
    return { block, node: last.node };
  }
  const node = renderBlock(block);
  if (last) last.node.replaceWith(node);
  else element.append(node);
  return { block, node };
}
