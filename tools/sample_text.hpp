// The text that `pocket validate` reads where none is given: prose in English and Chinese, written for it.
#ifndef POCKET_TOOLS_SAMPLE_TEXT_HPP
#define POCKET_TOOLS_SAMPLE_TEXT_HPP

namespace tools {

inline constexpr const char* sample_text =
    R"(The harbour master kept two ledgers. The first was the one that the town paid him for: arrivals, departures, tonnage, the depth of water over the bar at every tide. The second he kept for himself, in a smaller hand, and in it he wrote what the first had no column for. A schooner had come in with her flag at half mast and nobody aboard would say why. A boy had rowed out three times in one morning to ask whether the mail boat was in sight. The gulls had left the breakwater a full hour before the wind turned, and came back only when it was over.

He did not think of the second ledger as a diary. A diary is about the person who writes it, and he had no great interest in himself. It was closer to a chart. When you survey a channel you throw the lead in a great many places where there is nothing to find, because it is the soundings without a rock that tell a pilot where he may go. So he wrote down the quiet days as well: fog until ten, no vessels, the bell buoy heard clearly from the steps. After twenty years he could open the book at any page and say, from three lines, what sort of winter it had been.

The new engineer, who had been sent from the capital to build a tide gauge, asked to see it. She read for most of an afternoon without speaking, and then she asked why he never wrote down what he expected, only what had happened. He said that he had tried it once. For a month he had put down each evening what the next day would bring, and each night he had lain awake, listening to find out whether he was right. It had made him a worse observer. A man who has announced fair weather looks at a dark cloud and sees the blue at its edge.

She thought about this. Then she said that in her work it was the other way about. A measurement with nothing to compare it to was only a number. You computed what the level should be, from the moon and the sun and the shape of the coast, and you read the gauge, and the difference between the two was the only part that could teach you anything: a change of wind far out at sea, a sandbank that had moved, or a fault in the gauge. If the difference was always zero, she said, I would not believe that the theory was perfect. I would go and see whether somebody had nailed the float to its tube.

He laughed, which was rare, and fetched a third ledger, an empty one. They agreed on the columns in ten minutes. On the left hand page she would write what ought to come, a week ahead, in ink; on the right hand page he would write what came. Neither was to look at the other's page before the week was out. "And if they differ?" he asked. "Then we put both of our names to it," she said, "and one of us learns something."

To make bread for the week, mix a kilogram of flour with 700 grams of water, 20 grams of salt and 200 grams of yesterday's dough. Fold it four times, half an hour apart; leave it overnight in a cool place; shape it, let it rise for two hours, and bake it for 45 minutes at 230 degrees. If the crust splits on one side, the loaf was not tight enough, or the oven was hotter there.

湖边的小镇每逢初五有集市。天还没亮,卖豆腐的老人就挑着担子从桥上走过,桥下的水很静,能看见他的影子和两只木桶一起慢慢地移动。到了街口,他把担子放下,先不急着吆喝,而是用一块白布把每一板豆腐重新盖好。他说,豆腐怕风,人怕急。

隔壁的书铺今年换了主人。新主人是个年轻人,在城里读过几年书,回来以后把旧书一本一本地擦干净,按年份排在架上。有人笑他:镇上会看书的人不过几十个,排得这样整齐给谁看呢?年轻人回答说,书要是乱放着,连自己也会忘记有过什么。后来镇上的孩子放了学就来,坐在门槛上看图画,看完了放回原处,从来没有丢过一本。

那年秋天雨水多,湖面涨到了石阶的第三级。老人们都说,三十年前也有过这样的大水,那时候水退得快,只用了两天;可是没有人记得准确的日子。年轻人从架上取下一本旧账簿,里面夹着一张发黄的纸,上面写着:八月十七,水至第四级;八月二十,退。大家围着看,谁也不说话。卖豆腐的老人看了一会儿,慢慢地说:原来是我们记错了,那一年用了三天。

从那以后,书铺的墙上挂了一块木牌,每天早晨由第一个来的孩子写上水位和天气。字有大有小,有时写错了又划掉,可是一天也没有断过。有人问这有什么用,年轻人说:现在没有用,等到有用的时候再记,就来不及了。
)";

}  // namespace tools

#endif
